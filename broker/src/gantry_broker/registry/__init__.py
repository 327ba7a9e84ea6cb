"""Making this broker known to name servers."""
