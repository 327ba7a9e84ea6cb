"""The request handling of the broker: dispatch, handlers, and the services behind them."""
