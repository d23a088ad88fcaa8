package daemon

import (
	"context"
	"errors"
	"slices"
	"testing"

	"longhaul/internal/run/config"
)

// recorded is a part that records the calls to it.
type recorded struct {
	name             string
	notes            *[]string
	prepare, commits error
}

func (r recorded) note(what string) { *r.notes = append(*r.notes, what+" "+r.name) }

func (r recorded) Prepare(context.Context, *config.Config) (Change, error) {
	r.note("prepare")
	return recordedChange{r}, r.prepare
}

type recordedChange struct{ recorded }

func (c recordedChange) Commit() error { c.note("commit"); return c.commits }
func (c recordedChange) Abort()        { c.note("abort") }

func TestPartsChangeTogether(t *testing.T) {
	refused := errors.New("refused")
	for _, tt := range []struct {
		name             string
		prepare, commits map[string]error
		want             []string
	}{
		{"all", nil, nil, []string{"prepare a", "prepare b", "prepare c", "commit a", "commit b", "commit c"}},
		{"the last cannot prepare", map[string]error{"c": refused}, nil,
			[]string{"prepare a", "prepare b", "prepare c", "abort b", "abort a"}},
		{"the first cannot commit", nil, map[string]error{"a": refused},
			[]string{"prepare a", "prepare b", "prepare c", "commit a", "abort c", "abort b"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var notes []string
			var parts []part
			for _, name := range []string{"a", "b", "c"} {
				parts = append(parts, recorded{name, &notes, tt.prepare[name], tt.commits[name]})
			}
			err := change(t.Context(), parts, &config.Config{})
			if wrong := len(tt.prepare)+len(tt.commits) > 0; wrong != errors.Is(err, refused) {
				t.Errorf("error %v", err)
			}
			if !slices.Equal(notes, tt.want) {
				t.Errorf("got %v, want %v", notes, tt.want)
			}
		})
	}
}
