"""Who asks: the client side of the gateway, for any application."""

from agentic_trading.client.gateway import Gateway, GatewayClient

__all__ = ["Gateway", "GatewayClient"]
