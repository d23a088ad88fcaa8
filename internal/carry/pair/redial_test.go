package pair

import (
	"testing"
	"time"
)

func TestRedialEvery(t *testing.T) {
	t.Parallel()
	for away, want := range map[time.Duration]time.Duration{
		0: 100 * time.Millisecond, time.Minute: 500 * time.Millisecond, time.Hour: 2 * time.Second,
	} {
		if got := redialEvery(away); got != want {
			t.Errorf("a far relay that is away for %v is tried each %v, want %v", away, got, want)
		}
	}
}
