package link

import (
	"context"
	"fmt"
	"slices"
	"time"

	"longhaul/internal/words/sorted"
)

// Change is a change of settings in a schedule. A nil direction stays
// unchanged.
type Change struct {
	At     time.Duration // after the beginning of the schedule
	AB, BA *Settings
}

// Follow applies the changes at their times, counted from start, and returns
// after the last. It applies past changes at once. It validates all changes
// before the first is applied.
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
	sorted.By(schedule, func(a, b Change) int { return int(a.At - b.At) })
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
