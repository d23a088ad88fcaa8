package top

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// Order is the key by which connections are sorted, highest first.
type Order string

// The orders.
const (
	ByGoodput         Order = "goodput" // sum of sent and received
	ByRetransmissions Order = "retransmissions"
	ByLimited         Order = "limited"
	ByRTT             Order = "rtt"
)

// Orders are all orders.
func Orders() []Order { return []Order{ByGoodput, ByRetransmissions, ByLimited, ByRTT} }

// ParseOrder parses the name of an order.
func ParseOrder(name string) (Order, error) {
	if o := Order(name); slices.Contains(Orders(), o) {
		return o, nil
	}
	return "", fmt.Errorf("invalid order %q", name)
}

// Next returns the next order, and the first after the last.
func (o Order) Next() Order {
	all := Orders()
	return all[(slices.Index(all, o)+1)%len(all)]
}

// key returns the sort key of a connection. An unknown key sorts last.
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

// compare sorts by descending key, and equal keys by age, so that idle connections
// keep their rows.
func compare(a, b *Connection) int {
	return cmp.Or(cmp.Compare(b.sortKey, a.sortKey), cmp.Compare(a.Cookie, b.Cookie))
}
