"""Who answers: adapters of the `Provider` port."""
