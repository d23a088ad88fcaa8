package link

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Change is one of a schedule's: from then on, these settings hold. A nil
// direction stays as it is.
type Change struct {
	At     time.Duration // after the schedule's beginning
	AB, BA *Settings
}

// Follow changes the link's settings at their times, counted from start, and
// returns after the last of them. Changes whose time has passed are made at
// once. All of them are checked before the first is made.
func (l *Link) Follow(ctx context.Context, start time.Time, schedule []Change) error {
	for _, c := range schedule {
		for dir, s := range map[Direction]*Settings{AToB: c.AB, BToA: c.BA} {
			if s == nil {
				continue
			}
			if err := inDirection(dir, s.Validate()); err != nil {
				return fmt.Errorf("change after %v: %w", c.At, err)
			}
		}
	}
	schedule = slices.Clone(schedule)
	slices.SortStableFunc(schedule, func(a, b Change) int { return int(a.At - b.At) })
	for _, c := range schedule {
		timer := time.NewTimer(time.Until(start.Add(c.At)))
		select {
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		case <-timer.C:
		}
		for dir, s := range [2]*Settings{AToB: c.AB, BToA: c.BA} {
			if s == nil {
				continue
			}
			if err := l.Set(Direction(dir), *s); err != nil {
				return err
			}
		}
	}
	return nil
}
