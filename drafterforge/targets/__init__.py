"""The target model: download, loading, feature taps and batched answering."""
