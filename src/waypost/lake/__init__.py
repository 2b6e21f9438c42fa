"""The lake: the log's cold half as Delta tables, in a folder that any reader of Delta can open.

    store ──export──▶ sealing ──▶ message_events, payloads          one writer: the sealer, a child of the broker
                                  messages, deliveries, …           one writer: the pipeline

Importing this package imports neither pyarrow nor deltalake, so the broker's own process stays small.
"""
