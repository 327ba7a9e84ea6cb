"""The endpoints, by concern. Each declares the scope it requires, and a test verifies that each is protected by it."""
