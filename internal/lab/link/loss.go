package link

// Mean is the share of packets that the model loses in the long run.
func (l Loss) Mean() float64 {
	if l.ToBad == 0 {
		return l.Probability
	}
	bad := l.ToBad / (l.ToBad + l.ToGood) // share of time in the bad state
	return bad*l.BadProbability + (1-bad)*l.Probability
}
