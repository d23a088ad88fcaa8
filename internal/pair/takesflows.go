package pair

import "slices"

// TakesFlows reports whether the pair of a near tunnel has a session that takes new flows.
// It looks at nothing else: callers ask several times a second.
func (n *Node) TakesFlows(tunnel string) bool {
	n.mu.Lock()
	links := slices.Clone(n.links)
	n.mu.Unlock()
	return slices.ContainsFunc(links, func(l *Link) bool { return l.takesFlows(tunnel) })
}

func (l *Link) takesFlows(tunnel string) bool {
	l.mu.Lock()
	s, of := l.s, l.o.Tunnel
	l.mu.Unlock()
	if of != tunnel {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ctl != nil && !s.draining
}
