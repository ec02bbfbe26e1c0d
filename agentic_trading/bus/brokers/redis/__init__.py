"""The bus on Redis Streams: a topic is a number of streams, each read by one reader of a group at a time."""
