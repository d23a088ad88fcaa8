package doctor

// lossCause has no rule: only a glance names it.
var lossCause = causeEntry{
	cause: Loss, needsNone: true,
	sentence: func(r *Report) string { return "The path loses packets, and the connection gets " + r.gets() + "." },
}
