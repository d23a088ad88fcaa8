//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"longhaul/internal/carry/flow"
	"longhaul/internal/find/doctor"
	"longhaul/internal/watch/archive"
	"longhaul/internal/watch/archive/postgres"
	"longhaul/internal/watch/monitor/history"
	"longhaul/internal/watch/monitor/history/report"
	"longhaul/internal/words/display"
	"longhaul/internal/words/flagvalue"
	"longhaul/internal/words/ipprefix"
	"longhaul/internal/words/remedy"
	"longhaul/internal/words/units"
)

// servicesHistory is the history file of the packages' service.
const servicesHistory = "/var/lib/longhaul/history.db"

// historySelection has the flags of the commands that select records.
type historySelection struct {
	file, db, passwordFile              string
	since, until, cause, minBytes, flow string
	of                                  history.Selection
	client                              string
	relay                               relayChoice
	now                                 time.Time
	flags                               *pflag.FlagSet
	dbFlag                              *pflag.Flag   // nil: the command reads files alone
	running                             []runningFlow // of the relay, if it was asked
}

// runningFlow is a flow of the relay's status.
type runningFlow struct {
	Name   flow.Name `json:"name"`
	Tunnel string    `json:"tunnel"`
}

func (s *historySelection) addFile(cmd *cobra.Command) {
	cmd.Flags().StringVar(&s.file, "file", "", "`FILE` of the records (that of the running relay)")
	s.relay.register(cmd.Flags())
}

// addSource has the flags of commands that read a file or a database.
func (s *historySelection) addSource(cmd *cobra.Command) {
	s.addFile(cmd)
	cmd.Flags().StringVar(&s.db, "db", "", "`URL` of the database of many relays instead, such as postgres://reader@db.example.net/longhaul")
	cmd.Flags().StringVar(&s.passwordFile, "password-file", "", "`FILE` with the password for --db (PGPASSWORD, or ~/.pgpass)")
	_ = cmd.MarkFlagFilename("password-file")
	s.dbFlag = cmd.Flags().Lookup("db")
}

// addSelection has the flags of a [history.Selection].
func (s *historySelection) addSelection(flags *pflag.FlagSet) {
	flags.StringVar(&s.of.Tunnel, "tunnel", "", "flows of the tunnel `NAME`")
	flags.StringVar(&s.of.Relay, "relay", "", "records of the relay `NAME`, as lists show it: SITE/RELAY or RELAY")
	flags.StringVar(&s.of.Site, "site", "", "flows from or to the site `NAME`, or the peer; a file has the peers' alone")
	flags.StringVar(&s.client, "client", "", "flows of clients at `ADDRESS`, or in a prefix such as 10.1.2.0/24")
}

// selection reads the flags of addSelection.
func (s *historySelection) selection() (history.Selection, error) {
	if s.client == "" {
		return s.of, nil
	}
	var err error
	if s.of.Client, err = ipprefix.Parse(s.client); err != nil {
		return s.of, usageError(fmt.Errorf("--client: %w", err))
	}
	return s.of, nil
}

func (s *historySelection) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	s.flags = flags
	s.addSource(cmd)
	flags.StringVar(&s.since, "since", "", "flows that ended at `TIME` or later: 24h (ago), 2026-11-20, 14:30")
	flags.StringVar(&s.until, "until", "", "flows that ended before `TIME`; a date is the end of the day")
	s.addSelection(flags)
	flags.StringVar(&s.cause, "cause", "", "flows that `CAUSE` limited most of the time")
	flags.StringVar(&s.minBytes, "min-bytes", "", "flows that moved `SIZE` or more, such as 10MB")
	flags.StringVar(&s.flow, "flow", "", "records of the flow with this `NAME`, such as from a log")
}

// query returns the query of the flags.
func (s *historySelection) query() (q history.Query, err error) {
	s.now = time.Now()
	p, err := units.ParseSpan(s.since, s.until, s.now)
	if err != nil {
		return q, usageError(err)
	}
	q = history.Query{Since: p.From, Until: p.To, Cause: doctor.Cause(s.cause)}
	if q.Selection, err = s.selection(); err != nil {
		return q, err
	}
	if s.cause != "" && !slices.Contains(doctor.Causes(), q.Cause) {
		return q, usageError(remedy.New(fmt.Errorf("unknown cause %q", s.cause),
			"causes are "+joinWords(doctor.Causes())))
	}
	if s.flow != "" {
		if q.Name, err = flow.ParseName(s.flow); err != nil {
			return q, usageError(err)
		}
	}
	if s.flow == "" && s.flags.Changed("flow") {
		return q, usageError(remedy.New(errors.New("missing name of a flow"), "give --flow a name, or leave it out"))
	}
	q.MinBytes, err = parseMinBytes(s.minBytes)
	return q, err
}

// parseMinBytes returns 0 for an empty text, and a negative size for 0: no bound.
func parseMinBytes(text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	size, err := units.ParseSize(text)
	if err != nil {
		return 0, usageError(remedy.New(fmt.Errorf("invalid --min-bytes %q", text),
			"write it like 500kB, 10MB or 1GiB"))
	}
	if size == 0 {
		return -1, nil
	}
	return int64(size), nil
}

func joinWords[T ~string](all []T) string {
	words := make([]string, len(all))
	for i, w := range all {
		words[i] = string(w)
	}
	return strings.Join(words, ", ")
}

// databasePatience is how long a question to a database may take.
const databasePatience = 5 * time.Minute

// open opens the database, or finds the history.
func (s *historySelection) open(ctx context.Context, env *env) (history.Source, error) {
	switch {
	case s.db == "" && s.dbFlag != nil && s.dbFlag.Changed:
		return nil, usageError(remedy.New(errors.New("missing URL of a database"), "give --db a URL, or leave it out"))
	case s.db == "" && s.passwordFile != "":
		return nil, usageError(remedy.New(errors.New("--password-file belongs to --db"), "add --db, or leave it out"))
	case s.db == "":
		return s.openFile(ctx, env)
	case s.file != "" || s.relay.isGiven():
		return nil, usageError(remedy.New(errors.New("choose --db, or the file of a relay"), "leave one of them out"))
	}
	target, err := archive.DBFlag.Parse(s.db)
	if err != nil {
		return nil, usageError(err)
	}
	target.PasswordFile = s.passwordFile
	r, err := postgres.OpenReader(target, postgres.ReaderOptions{Patience: databasePatience, OfUser: true})
	if err != nil {
		return nil, usageError(err)
	}
	return r, nil
}

// named is what JSON has of the source.
func (s *historySelection) named(from history.Source) (key, name string) {
	if s.db != "" {
		return "database", from.Name()
	}
	return "file", from.Name()
}

// openFile finds the file of a relay and opens it.
func (s *historySelection) openFile(ctx context.Context, env *env) (*history.Reader, error) {
	path := s.file
	if path == "" {
		var err error
		if path, err = s.find(ctx, env); err != nil {
			return nil, err
		}
	}
	if !strings.HasPrefix(path, "/") {
		dir, err := os.Getwd()
		if err != nil {
			return nil, err
		}
		path = dir + "/" + path
	}
	r, err := history.OpenReader(path)
	if err != nil {
		return nil, usageError(remedy.New(err, "give the file of history: {file: …} in the relay's configuration"))
	}
	return r, nil
}

// find asks the running relay for its file and flows, or else returns the service's file.
func (s *historySelection) find(ctx context.Context, env *env) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	keep := "have the relay keep records: history: {file: " + servicesHistory + "} in its configuration, or --history; or name a file with --file"
	body, err := askRelay(ctx, env, s.relay)
	if err == nil {
		var status struct {
			History *struct {
				File string `json:"file"`
			} `json:"history"`
			Flows []runningFlow `json:"flows"`
		}
		if err := json.Unmarshal(body, &status); err != nil {
			return "", remedy.New(fmt.Errorf("read the relay's answer: %w", err), "name the file with --file")
		}
		if status.History == nil || status.History.File == "" {
			return "", remedy.New(errors.New("the running relay keeps no records of its flows"), keep)
		}
		s.running = status.Flows
		return status.History.File, nil
	}
	if s.relay.isGiven() || errors.Is(err, errSeveral) {
		return "", err
	}
	if _, statErr := os.Stat(servicesHistory); statErr == nil || errors.Is(statErr, os.ErrPermission) {
		return servicesHistory, nil
	}
	return "", remedy.New(fmt.Errorf("no relay answers here, and there is no %s", servicesHistory), keep)
}

// explain adds the hint to an error of the history.
func (s *historySelection) explain(err error) error {
	if s.db != "" {
		switch {
		case errors.Is(err, history.ErrNoRecord):
			return remedy.New(err, "longhaul history --db lists records with their IDs in the database; history schema --keep drops old ones")
		case errors.Is(err, history.ErrDisplaced):
			return remedy.New(err, "ask for a later time, or leave out --client")
		}
		return err // it has a hint
	}
	switch {
	case errors.Is(err, history.ErrNoFile):
		return remedy.New(err, "a relay with history: {file: …} in its configuration makes one; --file names another")
	case errors.Is(err, history.ErrForbidden):
		return remedy.New(err, "run this as root or as the relay's user")
	case errors.Is(err, history.ErrUnsound):
		return remedy.New(err,
			"the relay renames a damaged file and begins a new one when it finds the damage or restarts")
	case errors.Is(err, history.ErrNewer):
		return remedy.New(err, "use the longhaul of the relay that writes it")
	case errors.Is(err, history.ErrOlder):
		return remedy.New(err, "read it with the older longhaul (history export), then move it away: the relay begins a new one")
	case errors.Is(err, history.ErrForeign):
		return remedy.New(err, "name the file of history: {file: …} in the relay's configuration")
	case errors.Is(err, history.ErrNoRecord):
		return remedy.New(err, "longhaul history lists records with their IDs; the relay deletes old records")
	case errors.Is(err, history.ErrBusy):
		return remedy.New(err, "try again")
	case errors.Is(err, history.ErrDisplaced):
		return remedy.New(err, "ask for a later time, or leave out --relay, --site and --client")
	}
	return err
}

// run opens the history for a command that reads it.
func (s *historySelection) run(env *env, do func(ctx context.Context, r history.Source) error) error {
	ctx, stop := untilSignal(env.ctx)
	defer stop()
	r, err := s.open(ctx, env)
	if err != nil {
		return err
	}
	defer r.Close()
	return s.explain(do(ctx, r))
}

// hintTruncated says that a database has flows of clients that relays have truncated to a prefix around
// --client: they are not among those of it.
func (s *historySelection) hintTruncated(ctx context.Context, env *env, r history.Source) error {
	db, is := r.(*postgres.Reader)
	if !is || !s.of.Client.IsValid() {
		return nil
	}
	prefix, err := db.Truncated(ctx, s.of.Client)
	if err == nil && prefix.IsValid() {
		fmt.Fprintf(env.stderr, "there are also flows of truncated clients: --client %s has them\n", prefix)
	}
	return err
}

// runFile is run for what a file alone has.
func (s *historySelection) runFile(env *env, do func(ctx context.Context, r *history.Reader) error) error {
	return s.run(env, func(ctx context.Context, r history.Source) error { return do(ctx, r.(*history.Reader)) })
}

func newHistory(env *env) *cobra.Command {
	var (
		s             historySelection
		limit         = 20
		asJSON, asCSV bool
		order         = string(history.Newest)
	)
	cmd := &cobra.Command{
		Use:   "history",
		Short: "List flows that have ended: the slowest, the largest, by cause",
		Long: `history lists flows of a relay that have ended, also when the relay no longer
runs. The relay keeps records if its configuration has history:. The packages'
service has it.

BIT/S is the goodput of both directions over the whole life, pauses included;
RETR the share of data that both legs retransmitted. WHY is the cause that
limited the flow longest (see longhaul doctor), or the reason of its end if it
did not end from both sides. --json, --csv and show have its name and relays.

With --db the records are those of all relays that ship them to a database. A
flow has a record at each relay of its way: --relay and --site select.

The order is newest (latest end first), slowest (least goodput), longest,
largest (most bytes) or retransmitted (highest share). Without --min-bytes,
slowest and retransmitted leave out flows that moved less than 1 MiB.`,
		Example: `  longhaul history --since 24h --sort slowest
  longhaul history --tunnel to-site-b --cause loss --since 2026-11-20
  longhaul history compare --at 2026-11-20T14:30 --tunnel to-site-b
  longhaul history --db postgres://reader@db/longhaul --client 10.1.2.3
  longhaul history show 4711`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return needCommand(cmd, args)
			}
			return nil
		},
	}
	s.add(cmd)
	flags := cmd.Flags()
	flags.StringVar(&order, "sort", order, "an `ORDER`, see above")
	flagvalue.AddCount(flags, &limit, "limit", "maximum number of flows (0: no limit)")
	flags.BoolVar(&asJSON, "json", false, "print JSON")
	flags.BoolVar(&asCSV, "csv", false, "print a table for other programs")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		q, err := s.query()
		if err != nil {
			return err
		}
		q.Order = history.Order(order)
		switch {
		case !slices.Contains(history.Orders(), q.Order):
			return usageError(remedy.New(fmt.Errorf("unknown order %q", order), "choose from "+joinWords(history.Orders())))
		case asJSON && asCSV:
			return usageError(remedy.New(errors.New("choose one of --json and --csv"), "leave one of them out"))
		}
		if q.Limit = limit; limit == 0 {
			q.Limit = -1
		}
		return s.run(env, func(ctx context.Context, r history.Source) error {
			records, err := r.Query(ctx, q)
			if err == nil {
				err = s.hintTruncated(ctx, env, r)
			}
			if err != nil {
				return err
			}
			switch {
			case asJSON:
				key, name := s.named(r)
				return display.WriteJSON(env.stdout, map[string]any{key: name, "records": records})
			case asCSV:
				w := report.NewCSV(env.stdout)
				for i := range records {
					w.Write(&records[i])
				}
				return w.Flush()
			}
			list := report.List{Query: q, Now: s.now, OfRelays: s.db != ""}
			if len(records) == 0 || !list.OfRelays { // a database would have to count
				if list.Extent, err = r.Extent(ctx); err != nil {
					return err
				}
			}
			report.WriteList(env.stdout, records, list)
			return nil
		})
	}
	cmd.AddCommand(newHistoryShow(env), newHistoryCompare(env), newHistoryMatrix(env), newHistoryExport(env), newHistoryCheck(env), newHistorySchema(env))
	return cmd
}

func newHistoryExport(env *env) *cobra.Command {
	var s historySelection
	var asCSV bool
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Print every record, oldest first, as lines of JSON or as CSV",
		Long: `export prints every selected record of the history for other programs: a JSON
object a line with all fields, or with --csv a table. It reads while the relay
writes, and holds one record at a time in memory.`,
		Example: `  longhaul history export --since 2026-11-01 | jq .goodput.up_bps
  longhaul history export --csv --tunnel to-site-b > flows.csv`,
		Args: noArgs,
	}
	s.add(cmd)
	cmd.Flags().BoolVar(&asCSV, "csv", false,
		"print CSV: a line of names, then the records without their goodput over time")
	cmd.RunE = func(*cobra.Command, []string) error {
		q, err := s.query()
		if err != nil {
			return err
		}
		return s.run(env, func(ctx context.Context, r history.Source) error {
			if err := report.Export(ctx, env.stdout, r, q, asCSV); err != nil {
				return err
			}
			return s.hintTruncated(ctx, env, r)
		})
	}
	return cmd
}

func newHistoryCheck(env *env) *cobra.Command {
	var s historySelection
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Count the records of the history and check its file for damage",
		Long: `check reads the whole file of the history. It prints the number of records, the
file's size and the time that the records span, or the damage it found.

Exit codes: 0 the file is sound, 1 it is damaged or cannot be read.`,
		Example: `  longhaul history check
  longhaul history check --file /var/lib/longhaul/history.db --json`,
		Args: noArgs,
	}
	s.addFile(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(*cobra.Command, []string) error {
		return s.runFile(env, func(ctx context.Context, r *history.Reader) error {
			h, err := r.Health(ctx)
			if asJSON {
				if err := display.WriteJSON(env.stdout, h); err != nil {
					return err
				}
				if err != nil {
					return &exitError{nil, exitFailure}
				}
				return nil
			}
			if err == nil {
				report.WriteHealth(env.stdout, h)
			}
			return err
		})
	}
	return cmd
}

// completeHistory completes the flags that the history's commands share.
func completeHistory(cmd *cobra.Command) {
	if cmd.Flags().Lookup("tunnel") != nil {
		_ = cmd.RegisterFlagCompletionFunc("tunnel", completeTunnels)
	}
	if cmd.Flags().Lookup("cause") != nil {
		_ = cmd.RegisterFlagCompletionFunc("cause", cobra.FixedCompletions(strings.Split(joinWords(doctor.Causes()), ", "), cobra.ShellCompDirectiveNoFileComp))
	}
	if cmd.Flags().Lookup("file") != nil {
		_ = cmd.MarkFlagFilename("file", "db")
	}
}
