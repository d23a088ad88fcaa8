package doctor

// asymmetricMTUCause is a reason of small segments, which segmentSize finds.
var asymmetricMTUCause = causeEntry{
	cause: AsymmetricMTU, remedies: segmentSizeRemedies, doubt: segmentSizeDoubt,
	sentence: limited("Packets are as small as the way back requires, though this way carries larger ones: that limits it to %s."),
}
