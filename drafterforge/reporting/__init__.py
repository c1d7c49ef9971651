"""Pages, tables, charts and Markdown written from report.json."""
