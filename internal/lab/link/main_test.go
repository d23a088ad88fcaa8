package link

import (
	"testing"

	"longhaul/internal/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }
