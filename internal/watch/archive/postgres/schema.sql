-- What longhaul keeps in PostgreSQL 13 or later. Programs read flows, matrix and hours;
-- columns may be added to them, not removed or renamed.

CREATE SCHEMA longhaul;

CREATE TABLE longhaul.version (version integer NOT NULL);

-- A row for each record of each relay that had the flow. NULL is unknown or none. Those of one
-- flow have the same name. bytes_up go from the client to the target.
CREATE TABLE longhaul.flows (
	relay text NOT NULL,
	epoch bigint NOT NULL, -- of the relay's IDs
	id bigint NOT NULL,    -- in the relay's history
	started timestamptz NOT NULL,
	ended timestamptz NOT NULL,
	elapsed_us bigint NOT NULL,
	name uuid,
	relay_site text NOT NULL, -- the relay's own
	tunnel text NOT NULL,
	site text,                -- of the peer, if that is one of its hosts
	peer text,                -- the paired relay
	hop text,
	client cidr,
	client_port integer,
	target cidr,
	target_port integer,
	bytes_up bigint NOT NULL,
	bytes_down bigint NOT NULL,
	cause text,
	cause_leg text,
	cause_share double precision,
	ended_by text,
	reason text,
	error text,
	resumes bigint,
	outage_us bigint,
	client_side text,
	client_congestion_control text,
	client_rtt_us bigint,
	client_min_rtt_us bigint,
	client_bytes_sent bigint,
	client_bytes_retransmitted bigint,
	client_retransmits bigint,
	target_side text,
	target_congestion_control text,
	target_rtt_us bigint,
	target_min_rtt_us bigint,
	target_bytes_sent bigint,
	target_bytes_retransmitted bigint,
	target_retransmits bigint,
	goodput bytea,            -- its course, in longhaul's own format
	seq bigint NOT NULL GENERATED ALWAYS AS IDENTITY, -- the record's ID among all relays'
	PRIMARY KEY (relay, epoch, id, ended)
) PARTITION BY RANGE (ended); -- a day each, in UTC

-- For clocks that are years off.
CREATE TABLE longhaul.flows_other PARTITION OF longhaul.flows DEFAULT;

CREATE INDEX flows_seq ON longhaul.flows (seq);
CREATE INDEX flows_name ON longhaul.flows (name) WHERE name IS NOT NULL;
CREATE INDEX flows_client ON longhaul.flows (client, ended);
CREATE INDEX flows_ended ON longhaul.flows USING brin (ended);

-- How far each epoch is. It changes together with the rows, so none comes twice.
CREATE TABLE longhaul.epochs (
	epoch bigint PRIMARY KEY,
	last bigint NOT NULL, -- ID of the last record that is here
	relay text NOT NULL,
	at timestamptz NOT NULL DEFAULT now()
);

-- What the sums below are of. The side near to the client has near; a site-by-site matrix is of those.
CREATE TABLE longhaul.lines (
	line integer PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
	relay text NOT NULL,
	relay_site text NOT NULL,
	tunnel text NOT NULL,
	site text NOT NULL, -- of the peer, else the peer; empty: not paired
	near boolean NOT NULL, -- the client's leg is not the WAN's
	UNIQUE (relay, relay_site, tunnel, site, near)
);

-- Sums of the flows that ended in an hour, exact. Empty texts are none.
CREATE TABLE longhaul.hours (
	hour timestamptz NOT NULL,
	line integer NOT NULL REFERENCES longhaul.lines,
	cause text NOT NULL,
	ended_by text NOT NULL,
	reason text NOT NULL,
	flows bigint NOT NULL,
	transfers bigint NOT NULL, -- flows that moved data
	bytes_up bigint NOT NULL,
	bytes_down bigint NOT NULL,
	bytes_sent bigint NOT NULL, -- by both legs of the flows of which it is known
	bytes_retransmitted bigint NOT NULL,
	resumed bigint NOT NULL, -- flows that lost their connection between two relays
	resumes bigint NOT NULL,
	outage_us bigint NOT NULL,
	longest_outage_us bigint NOT NULL,
	PRIMARY KEY (hour, line, cause, ended_by, reason)
) WITH (fillfactor = 70);

-- Transfers of a day (UTC) by their goodput in bit/s (g) and time in seconds (t). A bin b has the
-- values from 2^(b/32) to below 2^((b+1)/32), so a quantile that is its middle is right within 1.1 %.
CREATE TABLE longhaul.bins (
	day date NOT NULL,
	line integer NOT NULL REFERENCES longhaul.lines,
	quantity "char" NOT NULL,
	bin smallint NOT NULL,
	flows bigint NOT NULL,
	PRIMARY KEY (day, line, quantity, bin)
) WITH (fillfactor = 70);

-- The table of a day (UTC). A writer calls it before the first row of the day comes; it is the one
-- thing that a writer may change of the schema. False: the day is far off, and flows_other has its
-- rows. Attaching locks flows against other changes of the schema alone, so rows go on coming, and
-- flows_other for a moment against everybody. Where somebody reads that for long, it fails with
-- lock_not_available, and is to be called again later.
CREATE FUNCTION longhaul.make_day(day date) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
DECLARE
	today date := (now() AT TIME ZONE 'UTC')::date;
	made text := 'flows_' || to_char(day, 'YYYYMMDD');
	since timestamptz := day::timestamp AT TIME ZONE 'UTC';
	until timestamptz := (day + 1)::timestamp AT TIME ZONE 'UTC';
BEGIN
	IF day IS NULL OR day NOT BETWEEN today - 400 AND today + 2 THEN
		RETURN false;
	END IF;
	IF to_regclass('longhaul.' || made) IS NOT NULL THEN
		RETURN true;
	END IF;
	LOCK TABLE ONLY longhaul.flows IN SHARE UPDATE EXCLUSIVE MODE; -- one makes it, others wait
	IF to_regclass('longhaul.' || made) IS NOT NULL THEN
		RETURN true;
	END IF;
	PERFORM set_config('lock_timeout', '1s', true); -- who reads flows waits behind this
	LOCK TABLE longhaul.flows_other IN ACCESS EXCLUSIVE MODE;
	EXECUTE format('CREATE TABLE longhaul.%I (LIKE longhaul.flows INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', made);
	-- Rows that came while the day was far off.
	EXECUTE format('WITH moved AS (DELETE FROM longhaul.flows_other WHERE ended >= $1 AND ended < $2 RETURNING *)
		INSERT INTO longhaul.%I SELECT * FROM moved', made) USING since, until;
	EXECUTE format('ALTER TABLE longhaul.flows ATTACH PARTITION longhaul.%I FOR VALUES FROM (%L) TO (%L)', made, since, until);
	RETURN true;
END $$;
REVOKE EXECUTE ON FUNCTION longhaul.make_day(date) FROM PUBLIC;

INSERT INTO longhaul.version VALUES (1);
