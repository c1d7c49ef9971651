"""The big model: fetching, loading, feature taps, batched answering."""
