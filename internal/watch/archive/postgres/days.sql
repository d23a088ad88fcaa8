-- Version 2: a row for each day and line, with histograms that sum() adds. Before, each bin had a row,
-- and there were more of them than flows.

-- 12 digits of a histogram for each bin: so many flows of that bin. A bin b has the values from 2^(b/32)
-- to below 2^((b+1)/32), so a quantile that is its middle is right within 1.1 %.
CREATE FUNCTION longhaul.histogram(bin integer, flows bigint) RETURNS numeric
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT (flows::text || 'e' || (12 * bin)::text)::numeric $$;

-- Sums of the flows that ended on a day (UTC), exact. See longhaul.quantiles for the histograms.
CREATE TABLE longhaul.days (
	day date NOT NULL,
	line integer NOT NULL REFERENCES longhaul.lines,
	flows bigint NOT NULL,
	transfers bigint NOT NULL, -- flows that moved data
	bytes_up bigint NOT NULL,
	bytes_down bigint NOT NULL,
	bytes_sent bigint NOT NULL,
	bytes_retransmitted bigint NOT NULL,
	goodputs numeric NOT NULL, -- histogram of the transfers' goodput in bit/s
	times numeric NOT NULL,    -- and of their time in seconds
	PRIMARY KEY (day, line)
) WITH (fillfactor = 70);

-- Relays wait until this ends.
LOCK TABLE longhaul.hours, longhaul.bins IN EXCLUSIVE MODE;
INSERT INTO longhaul.days
SELECT day, line, flows, transfers, up, down, sent, again, coalesce(goodputs, 0), coalesce(times, 0)
FROM (
	SELECT (hour AT TIME ZONE 'UTC')::date AS day, line, sum(flows) AS flows, sum(transfers) AS transfers, sum(bytes_up) AS up,
		sum(bytes_down) AS down, sum(bytes_sent) AS sent, sum(bytes_retransmitted) AS again
	FROM longhaul.hours GROUP BY 1, 2
) AS counts LEFT JOIN (
	SELECT day, line, sum(longhaul.histogram(bin, flows)) FILTER (WHERE quantity = 'g') AS goodputs,
		sum(longhaul.histogram(bin, flows)) FILTER (WHERE quantity = 't') AS times
	FROM longhaul.bins GROUP BY 1, 2
) AS histograms USING (day, line);

-- Who may add to bins, or read them, may do so here.
DO $$
DECLARE r record;
BEGIN
	FOR r IN SELECT privilege_type AS may, CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END AS role
		FROM pg_catalog.pg_class, pg_catalog.aclexplode(relacl) WHERE oid = 'longhaul.bins'::regclass AND grantee <> relowner
	LOOP
		EXECUTE format('GRANT %s ON longhaul.days TO %s', r.may, r.role);
	END LOOP;
END $$;
DROP TABLE longhaul.bins;

ALTER TABLE longhaul.version ADD COLUMN functions text; -- SHA-256 of the text that made the functions
