// Command records ships the records of a fleet of relays to a database, while relays, the database and
// the network between them die, and compares what the database has with the relays' own files.
package main

import (
	"context"
	"math/rand/v2"
	"os"
	"time"

	"longhaul/bench/kit"
	"longhaul/lab"
	"longhaul/lab/experiment"
	"longhaul/lab/sandbox"
	"longhaul/test/pgserver"
)

func main() {
	if os.Getenv(fleetVariable) != "" {
		os.Exit(runFleet())
	}
	kit.Main(suite().Entry())
}

// The databases.
const (
	wayPostgres   = "postgres"
	wayClickHouse = "clickhouse"
)

// The fleet: processes with as many relays each.
const (
	processes     = 10
	relaysInEach  = 5
	faults        = 20               // of a run, one after the other
	maxDown       = 5 * time.Second  // of the sink and the network
	recovery      = 10 * time.Second // after a fault, before lag counts
	drainPatience = 5 * time.Minute  // until the last record is there
	maxLag        = 2 * time.Second
	startPatience = time.Minute
	slowRate      = 40 // flows a second of each relay
	fastRate      = 200
	lagFigure     = "lag while all is up, most, s"
)

func suite() kit.Suite {
	ways := []string{wayPostgres, wayClickHouse}
	return kit.Suite{
		Usual: kit.Options{Repeat: 1, Seed: 1, Time: 10 * time.Minute}, QuickTime: time.Minute, Missing: missing,
		Trials: []kit.Trial{
			{Name: "faults", About: "50 relays ship; relays, the database and the network die 20 times",
				Ways: ways, Run: withFaults},
			{Name: "flood", About: "50 relays with 200 flows/s each ship to PostgreSQL without faults",
				Ways: []string{wayPostgres}, Run: flood},
			{Name: "cost", About: "CPU time of a relay with 200 flows/s of 256 KiB, with shipping and without",
				Ways: ways, Run: cost},
		},
		Experiment: experiment.Experiment{
			Name:    "records",
			Summary: "records of 50 relays in one database",
			Source:  "no report: the relays' own files are the truth",
			Short:   "Ship the records of 50 relays to a database that dies at times",
			Long: `records runs 50 relays that end flows, 40 a second each to PostgreSQL and 200 to
ClickHouse, and ship their records there. They keep records as relays do, and
carry no flows. In faults, 20 times, a process with five relays is killed and
started again, or the database is, or the network between them drops all packets
for up to 5 s. At the end the rows of the database are compared with the relays'
files. In cost one relay carries flows, with shipping and without in turn.

  postgres    Debian's postgresql
  clickhouse  Debian's clickhouse-server, by JSON rows over HTTP

Exit codes: 0 all bounds hold, 1 one does not.`,
			Example: `  go run ./bench/records --quick
  go run ./bench/records --case faults --through postgres --time 10m --json > records.json`,
		},
	}
}

// missing says why a way cannot run on this machine; empty if it can.
func missing(way string) string {
	if way == wayClickHouse {
		return lab.MissingProgram("clickhouse-server", "clickhouse-server")
	}
	if pgserver.Programs() == "" {
		return "PostgreSQL's server is not installed (Debian: postgresql)"
	}
	return ""
}

func rateOf(way string) int {
	if way == wayClickHouse {
		return fastRate
	}
	return slowRate
}

// withFaults ships while things die.
func withFaults(ctx context.Context, o kit.Options, way string, run int, note func(kit.Measured)) error {
	return measure(ctx, o, way, rateOf(way), note, func(w *world) error {
		random := rand.New(rand.NewPCG(o.SeedOf(run), 1))
		each := o.Time / faults
		for i := range faults {
			down := time.Duration(random.Int64N(int64(min(maxDown, each/2))))
			w.fault(true)
			var err error
			switch kind := i % 3; kind {
			case 0:
				err = w.restart(ctx, random.IntN(processes), down)
			case 1:
				err = w.sink.restart(ctx, down)
			default:
				err = w.cut(ctx, down)
			}
			if err != nil {
				return err
			}
			w.fault(false)
			if err := kit.Pause(ctx, max(each-down, 0)); err != nil {
				return err
			}
		}
		return nil
	})
}

// flood ships more than PostgreSQL is good for.
func flood(ctx context.Context, o kit.Options, way string, _ int, note func(kit.Measured)) error {
	return measure(ctx, o, way, fastRate, note, func(*world) error { return kit.Pause(ctx, o.Time) })
}

// measure runs the fleet beside what a case does, and judges.
func measure(ctx context.Context, o kit.Options, way string, rate int, note func(kit.Measured), during func(*world) error) error {
	if err := sandbox.PrivateRun(); err != nil {
		return err
	}
	w, err := newWorld(ctx, o, way, rate)
	if err != nil {
		return err
	}
	defer w.close()
	if err := during(w); err != nil {
		return w.errorf(err)
	}
	return w.judge(ctx, rate == slowRate || way == wayClickHouse, note)
}
