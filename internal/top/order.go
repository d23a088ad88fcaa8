package top

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// Order is what connections are sorted by, the most first.
type Order string

// The orders.
const (
	ByGoodput         Order = "goodput" // sent and received together
	ByRetransmissions Order = "retransmissions"
	ByLimited         Order = "limited"
	ByRTT             Order = "rtt"
)

// Orders are all of them.
func Orders() []Order { return []Order{ByGoodput, ByRetransmissions, ByLimited, ByRTT} }

// ParseOrder reads the name of an order.
func ParseOrder(name string) (Order, error) {
	if o := Order(name); slices.Contains(Orders(), o) {
		return o, nil
	}
	return "", fmt.Errorf("invalid order %q", name)
}

// Next is the order after this one, and the first after the last.
func (o Order) Next() Order {
	all := Orders()
	return all[(slices.Index(all, o)+1)%len(all)]
}

// key is what a connection is sorted by. One of which it is not known comes last.
func (o Order) key(c *Connection) float64 {
	key := math.NaN()
	switch o {
	case ByGoodput:
		key = c.SentBps + c.ReceivedBps
	case ByRetransmissions:
		key = c.Retransmitted
	case ByLimited:
		key = c.Limited()
	case ByRTT:
		key = c.RTT()
	}
	return key
}

// compare puts the greater key first, and of two alike the older connection, so
// that the idle ones do not dance.
func compare(a, b *Connection) int {
	return cmp.Or(cmp.Compare(b.sortKey, a.sortKey), cmp.Compare(a.Cookie, b.Cookie))
}
