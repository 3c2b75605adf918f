// What a client answers to a value, once it is in the store.

/** Return "kept", or the reason why the value has no report. */
export async function told(client, name, value) {
  const { outcome, reason } = client.record(name, value);
  await client.waiting();
  return reason || outcome;
}
