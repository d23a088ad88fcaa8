-- For queries of people, and for longhaul's own. Whoever may read the tables may call them.

-- The bin of a positive value, see longhaul.bins; NULL of others.
CREATE OR REPLACE FUNCTION longhaul.bin(value double precision) RETURNS smallint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
	SELECT floor(32 / ln(2::double precision) * ln(nullif(greatest(value, 0), 0)))::smallint
$$;

-- The middle of a bin, which is right within 1.1 %.
CREATE OR REPLACE FUNCTION longhaul.middle(bin integer) RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT 2 ^ ((bin + 0.5::double precision) / 32) $$;

-- Who moved how much to whom among the flows that ended from since to before until (NULL: no bound),
-- each counted where its client is, the most bytes first. Whole days (UTC) come from the sums, so
-- they are quick; the rest from the rows. Quantiles are of flows that moved data, right within 1.1 %,
-- and with most only of the first lines: those of thousands take their time. to_site is empty where
-- no pair carried the flow.
CREATE OR REPLACE FUNCTION longhaul.matrix(since timestamptz DEFAULT NULL, until timestamptz DEFAULT NULL, most integer DEFAULT NULL)
RETURNS TABLE (from_site text, to_site text, flows bigint, transfers bigint, bytes_up bigint, bytes_down bigint,
	retransmitted_share double precision, goodput_median_bps double precision, goodput_p99_bps double precision,
	time_median_s double precision, time_p99_s double precision)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off SET "TimeZone" = 'UTC'
SET plan_cache_mode = force_custom_plan SET work_mem = '64MB' AS $$
#variable_conflict use_column
DECLARE
	since_at timestamptz := coalesce(since, '-infinity');
	until_at timestamptz := CASE WHEN until < now() THEN until ELSE 'infinity' END;
	first_day timestamptz := CASE WHEN isfinite(since_at) THEN date_trunc('day', since_at + interval '1 day' - interval '1 microsecond') ELSE since_at END;
	end_day timestamptz := CASE WHEN isfinite(until_at) THEN date_trunc('day', until_at) ELSE until_at END;
	-- Of each line of the matrix, in its order.
	a_from text[]; a_to text[]; a_flows bigint[]; a_transfers bigint[]; a_up bigint[]; a_down bigint[]; a_sent bigint[]; a_again bigint[];
	lines integer[]; -- of longhaul.lines, whose quantiles are wanted
	cells integer[]; -- the place of each of them in the matrix
	days date[]; -- the whole ones: by days and lines the index finds the bins
BEGIN
	IF first_day > end_day THEN -- all within a day
		first_day := until_at;
		end_day := until_at;
	END IF;
	-- As text, because only so several processes may share the work.
	EXECUTE $sums$SELECT array_agg(relay_site), array_agg(site), array_agg(flows), array_agg(transfers), array_agg(up), array_agg(down), array_agg(sent), array_agg(again)
	FROM (
		SELECT relay_site, site, sum(flows)::bigint AS flows, sum(transfers)::bigint AS transfers, sum(up)::bigint AS up, sum(down)::bigint AS down,
			sum(sent)::bigint AS sent, sum(again)::bigint AS again
		FROM (
			SELECT relay_site, site, flows, transfers, up, down, sent, again FROM (
				SELECT line, sum(flows) AS flows, sum(transfers) AS transfers, sum(bytes_up) AS up, sum(bytes_down) AS down,
					sum(bytes_sent) AS sent, sum(bytes_retransmitted) AS again
				FROM longhaul.hours WHERE hour >= $2 AND hour < $3 GROUP BY line) AS l JOIN longhaul.lines USING (line) WHERE near
			UNION ALL
			SELECT relay_site, coalesce(site, peer, ''), count(*), count(*) FILTER (WHERE bytes_up + bytes_down > 0 AND elapsed_us > 0),
				sum(bytes_up), sum(bytes_down), sum(coalesce(client_bytes_sent, 0) + coalesce(target_bytes_sent, 0)),
				sum(CASE WHEN client_bytes_sent IS NOT NULL THEN coalesce(client_bytes_retransmitted, 0) ELSE 0 END
					+ CASE WHEN target_bytes_sent IS NOT NULL THEN coalesce(target_bytes_retransmitted, 0) ELSE 0 END)
			FROM longhaul.flows
			WHERE (ended >= $1 AND ended < $2 OR ended >= $3 AND ended < $4) AND client_side IS DISTINCT FROM 'wan' GROUP BY 1, 2
		) AS parts GROUP BY relay_site, site ORDER BY sum(up + down) DESC, relay_site, site
	) AS ordered$sums$
	INTO a_from, a_to, a_flows, a_transfers, a_up, a_down, a_sent, a_again USING since_at, first_day, end_day, until_at;
	SELECT array_agg(line), array_agg(cell::integer) INTO lines, cells
	FROM unnest(a_from, a_to) WITH ORDINALITY AS c (relay_site, site, cell) JOIN longhaul.lines USING (relay_site, site)
	WHERE near AND (most IS NULL OR cell <= most);
	SELECT array_agg(day::date) INTO days
	FROM (SELECT min(day) AS first, max(day) AS last FROM longhaul.bins HAVING min(day) IS NOT NULL) AS has, -- without any the series has no end
		generate_series(greatest(first_day::date, first)::timestamptz, least(end_day::date, last + 1) - interval '1 day', '1 day') AS day;
	RETURN QUERY
	WITH counts AS (
		SELECT cell, quantity, bin, sum(n) AS n -- as float8, which is exact and quick here
		FROM (
			SELECT cell, quantity, bin, n FROM (
				SELECT line, quantity, bin, sum(flows::double precision) AS n FROM longhaul.bins
				WHERE most IS NULL AND day >= first_day::date AND day < end_day::date GROUP BY line, quantity, bin
				UNION ALL
				SELECT line, quantity, bin, flows::double precision FROM longhaul.bins WHERE most IS NOT NULL AND day = ANY (days) AND line = ANY (lines)
			) AS b JOIN unnest(lines, cells) AS l (line, cell) USING (line)
			UNION ALL
			SELECT cell, quantity, longhaul.bin(CASE quantity WHEN 't' THEN elapsed_us / 1e6::double precision
				ELSE (bytes_up + bytes_down) * 8e6::double precision / elapsed_us END), count(*)::double precision
			FROM longhaul.flows AS f
				JOIN unnest(a_from, a_to) WITH ORDINALITY AS c (relay_site, site, cell) ON c.relay_site = f.relay_site AND c.site = coalesce(f.site, f.peer, '')
				CROSS JOIN (VALUES ('g'::"char"), ('t')) AS q (quantity)
			WHERE (ended >= since_at AND ended < first_day OR ended >= end_day AND ended < until_at) AND client_side IS DISTINCT FROM 'wan'
				AND bytes_up + bytes_down > 0 AND elapsed_us > 0 AND (most IS NULL OR cell <= most)
			GROUP BY 1, 2, 3
		) AS parts GROUP BY cell, quantity, bin
	), ranks AS (
		SELECT cell, quantity, bin, sum(n) OVER (PARTITION BY cell, quantity ORDER BY bin) AS upto, sum(n) OVER (PARTITION BY cell, quantity) AS total
		FROM counts
	), quantiles AS (
		SELECT cell, min(bin) FILTER (WHERE quantity = 'g' AND upto >= ceil(0.5 * total)) AS g50,
			min(bin) FILTER (WHERE quantity = 'g' AND upto >= ceil(0.99 * total)) AS g99,
			min(bin) FILTER (WHERE quantity = 't' AND upto >= ceil(0.5 * total)) AS t50,
			min(bin) FILTER (WHERE quantity = 't' AND upto >= ceil(0.99 * total)) AS t99
		FROM ranks GROUP BY cell
	)
	SELECT c.from_site, c.to_site, c.flows, c.transfers, c.up, c.down, c.again / nullif(c.sent, 0)::double precision,
		longhaul.middle(g50), longhaul.middle(g99), longhaul.middle(t50), longhaul.middle(t99)
	FROM unnest(a_from, a_to, a_flows, a_transfers, a_up, a_down, a_sent, a_again) WITH ORDINALITY
		AS c (from_site, to_site, flows, transfers, up, down, sent, again, cell) LEFT JOIN quantiles USING (cell) ORDER BY cell;
END $$;

GRANT EXECUTE ON FUNCTION longhaul.bin(double precision), longhaul.middle(integer), longhaul.matrix(timestamptz, timestamptz, integer) TO PUBLIC;
