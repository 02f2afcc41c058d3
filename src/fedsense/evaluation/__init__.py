"""How runs are scored: metrics, views, summaries."""
