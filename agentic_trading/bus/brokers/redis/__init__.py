"""The bus on Redis Streams.

A topic has several streams, and one reader of a group reads a stream at a time.
"""
