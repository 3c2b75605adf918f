// The outcome of a recorded value, after the value is in the store.

/** Record a value; return "recorded", or the reason why the value has no report. */
export async function outcomeOf(client, name, value) {
  const { outcome, reason } = client.record(name, value);
  await client.queuedCount(); // stores what is in memory first
  return reason || outcome;
}
