package link

import (
	"testing"

	"longhaul/test/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }
