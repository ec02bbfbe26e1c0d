"""The one loop: envelopes taken from the bus, run under the gate, stored, published, acknowledged."""
