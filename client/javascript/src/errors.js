// What the client raises on purpose: mistakes of the program. No message holds a value.

/** Everything that is raised on purpose. */
export class RapporError extends Error {
  name = "RapporError";
}

/** A parameter or a setting is outside its range. */
export class ParamsError extends RapporError {
  name = "ParamsError";
}

/** A value is not of its metric's kind, or bytes are no report. */
export class ReportError extends RapporError {
  name = "ReportError";
}

/** A registry's entry is wrong, or a metric is not in it. */
export class MetricError extends RapporError {
  name = "MetricError";
}
