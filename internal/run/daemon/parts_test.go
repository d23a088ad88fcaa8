package daemon

import (
	"context"
	"errors"
	"slices"
	"testing"
)

// recorded is a part that records the calls to it.
type recorded struct {
	name         string
	notes        *[]string
	prepare, try error
}

func (r recorded) note(what string) { *r.notes = append(*r.notes, what+" "+r.name) }

func (r recorded) Prepare(context.Context, *plan) (Change, error) {
	r.note("prepare")
	if r.name == "attempt" {
		return recordedAttempt{recordedChange{r}}, r.prepare
	}
	return recordedChange{r}, r.prepare
}

type recordedChange struct{ recorded }

func (c recordedChange) Commit() { c.note("commit") }
func (c recordedChange) Abort()  { c.note("abort") }

type recordedAttempt struct{ recordedChange }

func (a recordedAttempt) Try() error { a.note("try"); return a.try }

func TestPartsChangeTogether(t *testing.T) {
	refused := errors.New("refused")
	for _, tt := range []struct {
		name         string
		prepare, try map[string]error
		want         []string
	}{
		{"all", nil, nil, []string{"prepare a", "prepare attempt", "prepare c", "try attempt", "commit a", "commit attempt", "commit c"}},
		{"the last cannot prepare", map[string]error{"c": refused}, nil,
			[]string{"prepare a", "prepare attempt", "prepare c", "abort attempt", "abort a"}},
		{"the attempt fails", nil, map[string]error{"attempt": refused},
			[]string{"prepare a", "prepare attempt", "prepare c", "try attempt", "abort c", "abort a"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var notes []string
			var parts []part
			for _, name := range []string{"a", "attempt", "c"} {
				parts = append(parts, recorded{name, &notes, tt.prepare[name], tt.try[name]})
			}
			err := change(t.Context(), parts, &plan{})
			if wrong := len(tt.prepare)+len(tt.try) > 0; wrong != errors.Is(err, refused) {
				t.Errorf("error %v", err)
			}
			if !slices.Equal(notes, tt.want) {
				t.Errorf("got %v, want %v", notes, tt.want)
			}
		})
	}
}
