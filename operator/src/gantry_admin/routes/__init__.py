"""The endpoints, by concern. Each says which scope it needs; a test sees to it that none answers without."""
