"""Which owner holds which envelope: adapters of the `ClaimStore` port."""
