package doctor

// stallCause has no rule: only a glance names it.
var stallCause = causeEntry{
	cause: Stalled, needsNone: true,
	sentence: func(*Report) string { return "Nothing that the sender repeats is acknowledged." },
}
