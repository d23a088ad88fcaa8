package doctor

// The causes that only a glance names.
var (
	lossCause = causeEntry{
		cause: Loss, needsNone: true,
		sentence: func(r *Report) string { return "The path loses packets, and the connection gets " + r.gets() + "." },
	}
	stallCause = causeEntry{
		cause: Stalled, needsNone: true,
		sentence: func(*Report) string { return "Nothing that the sender repeats is acknowledged." },
	}
)
