//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"longhaul/internal/watch/archive"
	"longhaul/internal/watch/archive/jsonrows"
	"longhaul/internal/watch/archive/postgres"
	"longhaul/internal/words/display"
	"longhaul/internal/words/flagvalue"
	"longhaul/internal/words/remedy"
)

func newHistorySchema(env *env) *cobra.Command {
	var (
		to, passwordFile string
		o                postgres.SchemaOptions
		show, asJSON     bool
	)
	cmd := &cobra.Command{
		Use:   "schema --to URL",
		Short: "Make or migrate the tables of a database that relays ship their records to",

		DisableFlagsInUseLine: true,

		Long: `schema makes the tables of a database for history: {ship: …}, or brings them to
the version of this longhaul. Tables that are as wanted stay as they are, so it
may run at any time. Run it as the owner of the database; relays need a role
that may only add records (--writer), reports one that may only read (--reader).
Both roles must exist. ClickHouse has rights of its own. Its URL is the sink's:
https://ch:8443/?query=INSERT INTO flows FORMAT JSONEachRow.

With --keep it drops the records of flows that ended longer ago, whole days at a
time; run it each day. --keep-sums does so for the sums by hour and day. Without
them everything stays.`,
		Example: `  longhaul history schema --to postgres://owner@db/longhaul --writer relays
  longhaul history schema --to postgres://owner@db/longhaul --keep 400d
  longhaul history schema --to postgres://owner@db/longhaul --print`,
		Args: noArgs,
	}
	flags := cmd.Flags()
	flags.StringVar(&to, "to", "", "`URL` of the database, without a password: postgres://USER@HOST/DATABASE")
	flags.StringVar(&passwordFile, "password-file", "", "`FILE` with the password of the user in the URL (PGPASSWORD, or ~/.pgpass)")
	flags.StringVar(&o.Writer, "writer", "", "let the `ROLE` add records")
	flags.StringVar(&o.Reader, "reader", "", "let the `ROLE` read everything")
	flagvalue.AddDuration(flags, &o.Keep, "keep", "drop records of flows that ended longer ago, such as 400d (0: keep all)")
	flagvalue.AddDuration(flags, &o.KeepSums, "keep-sums", "drop sums of hours and days that are older (0: keep all)")
	flags.BoolVar(&show, "print", false, "print the SQL for an empty database, and connect to nothing")
	flags.BoolVar(&asJSON, "json", false, "print JSON")
	_ = cmd.MarkFlagFilename("password-file")
	cmd.RunE = func(*cobra.Command, []string) error {
		if to == "" {
			return usageError(remedy.New(errors.New("missing --to URL"), "name the database: --to postgres://owner@db.example.net/longhaul"))
		}
		target, err := archive.ToFlag.Parse(to)
		if err != nil {
			return usageError(err)
		}
		target.PasswordFile = passwordFile
		if show && (asJSON || o.KeepSums != 0 || o.Keep != 0 && target.Kind == archive.Postgres) {
			return usageError(remedy.New(errors.New("--print stands alone, or with --writer and --reader"), "leave out --json, --keep and --keep-sums"))
		}
		ctx, stop := untilSignal(env.ctx)
		defer stop()
		switch target.Kind {
		case archive.Postgres:
			return postgresSchema(ctx, env, target, o, show, asJSON)
		case archive.JSONRows:
			if o.Writer != "" || o.Reader != "" || o.KeepSums != 0 {
				return usageError(remedy.New(errors.New("--writer, --reader and --keep-sums are for PostgreSQL"), "give rights in ClickHouse with GRANT"))
			}
			return clickHouseSchema(ctx, env, target, jsonrows.SchemaOptions{Keep: o.Keep, Print: show}, asJSON)
		}
		return usageError(remedy.New(fmt.Errorf("there are no tables at %s", to), "name a database: --to postgres://owner@db.example.net/longhaul"))
	}
	return cmd
}

func clickHouseSchema(ctx context.Context, env *env, t archive.Target, o jsonrows.SchemaOptions, asJSON bool) error {
	statements, err := jsonrows.Schema(ctx, t, o)
	if err != nil {
		return err
	}
	switch {
	case asJSON:
		return display.WriteJSON(env.stdout, map[string]any{"statements": statements})
	case o.Print:
		for _, one := range statements {
			fmt.Fprintf(env.stdout, "%s;\n", strings.TrimRight(one, ";\n "))
		}
	default:
		fmt.Fprintf(env.stdout, "the tables are as wanted, after %s\n", display.Plural(len(statements), "statement"))
	}
	return nil
}

func postgresSchema(ctx context.Context, env *env, t archive.Target, o postgres.SchemaOptions, show, asJSON bool) error {
	if err := o.Check(); err != nil {
		return usageError(err)
	}
	if show {
		_, err := io.WriteString(env.stdout, postgres.SchemaSQL(o))
		return err
	}
	c, err := postgres.MakeSchema(ctx, t, o)
	if err != nil {
		return err
	}
	if asJSON {
		return display.WriteJSON(env.stdout, c)
	}
	say := func(format string, args ...any) { fmt.Fprintf(env.stdout, format+"\n", args...) }
	switch {
	case c.Before == 0:
		say("made the tables, version %d", c.Version)
	case c.Before < c.Version:
		say("brought the tables from version %d to %d", c.Before, c.Version)
	case !c.Any():
		say("nothing to do: the tables have version %d", c.Version)
	}
	if c.Functions {
		say("made the functions anew")
	}
	for _, role := range c.Granted {
		say("granted rights to %s", role)
	}
	if n := len(c.MadeDays); n > 0 {
		say("gave the records of %s a table of their own, from %s to %s", display.Plural(n, "day"), c.MadeDays[0], c.MadeDays[n-1])
	}
	if n := len(c.DroppedDays); n > 0 {
		say("dropped the records of %s, from %s to %s", display.Plural(n, "day"), c.DroppedDays[0], c.DroppedDays[n-1])
	}
	if c.DroppedRows > 0 {
		say("dropped %d records from before %s of clocks that are off", c.DroppedRows, c.KeptFrom.Format(time.DateOnly))
	}
	if c.DroppedSums > 0 {
		say("dropped %d rows of sums", c.DroppedSums)
	}
	return nil
}
