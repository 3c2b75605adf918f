// Recording for tests that read the store afterwards.

/** Record a value, and wait until it is in the store; return "recorded", or the reason why it was skipped. */
export async function outcomeOf(client, name, value) {
  const { outcome, reason } = client.record(name, value);
  await client.queuedCount(); // stores the events in memory first
  return reason || outcome;
}
