package pair

import (
	"time"

	"longhaul/internal/carry/pair/wire"
)

// mode is how the lanes of a session carry flows. It never changes: a link whose
// options change begins another session.
type mode struct {
	clear    bool // lanes go on in clear behind their handshake
	noResume bool // a flow ends with its lane
	compress bool // the near end wants compressed records; an older far end knows none
}

func (o LinkOptions) mode() mode {
	return mode{o.Clear, o.NoResume, o.Compress && !(o.Clear && o.NoResume)} // what is spliced nobody looks at
}

func modeOf(f wire.Features) mode {
	return mode{f&wire.FeatureClear != 0, f&wire.FeatureNoResume != 0, f&wire.FeatureCompress != 0}
}

func (m mode) features() (f wire.Features) {
	if m.clear {
		f |= wire.FeatureClear | wire.FeatureSealed | wire.FeatureSums
	}
	if m.noResume {
		f |= wire.FeatureNoResume
	}
	if m.compress {
		f |= wire.FeatureCompress
	}
	return f
}

// uses are those of the features that both ends know of which sessions of the mode make use. Flows
// that do not resume have one lane each, and nothing goes ahead of it.
func (m mode) uses(both wire.Features) wire.Features {
	if !m.clear {
		both &^= wire.FeatureSealed | wire.FeatureSums
	}
	if m.noResume {
		both &^= wire.FeatureLanes | wire.FeatureAhead
	}
	if !m.compress {
		both &^= wire.FeatureCompress
	}
	if both&wire.FeatureSealed != 0 {
		both |= wire.FeatureSent // whoever knows the one knows the other
	}
	return both
}

// waits is how long a near session's flows wait for a lane.
func (m mode) waits(o LinkOptions) time.Duration {
	if m.noResume {
		return waitNoResume
	}
	return o.Resume
}
