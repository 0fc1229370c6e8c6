"""The commands: their words, their replies, and the limiter that sends them through the application's client."""
