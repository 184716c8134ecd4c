"""Whether a machine can measure what is to be measured: checks, each with what to do next."""
