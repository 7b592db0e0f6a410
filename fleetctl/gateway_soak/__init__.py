"""The gateway's soak: a fleet whose processes are killed, stopped, drained, added and slowed under its users."""
