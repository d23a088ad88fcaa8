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
-- each counted where its client is. Whole days come from the sums, so they are quick; the rest from
-- the rows. Quantiles are of flows that moved data, and right within 1.1 %. to_site is empty where
-- no pair carried the flow.
CREATE OR REPLACE FUNCTION longhaul.matrix(since timestamptz DEFAULT NULL, until timestamptz DEFAULT NULL)
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
BEGIN
	IF first_day > end_day THEN -- all within a day
		first_day := until_at;
		end_day := until_at;
	END IF;
	RETURN QUERY
	WITH rest AS MATERIALIZED (
		SELECT relay_site, coalesce(site, peer, '') AS site, longhaul.bin(elapsed_us / 1e6::double precision) AS t,
			longhaul.bin((bytes_up + bytes_down) * 8e6::double precision / nullif(elapsed_us, 0)) AS g, bytes_up, bytes_down,
			coalesce(client_bytes_sent, 0) + coalesce(target_bytes_sent, 0) AS sent,
			CASE WHEN client_bytes_sent IS NOT NULL THEN coalesce(client_bytes_retransmitted, 0) ELSE 0 END
				+ CASE WHEN target_bytes_sent IS NOT NULL THEN coalesce(target_bytes_retransmitted, 0) ELSE 0 END AS again
		FROM longhaul.flows
		WHERE (ended >= since_at AND ended < first_day OR ended >= end_day AND ended < until_at) AND client_side IS DISTINCT FROM 'wan'
	), cells AS (
		SELECT relay_site, site, sum(flows)::bigint AS flows, sum(transfers)::bigint AS transfers, sum(up)::bigint AS up, sum(down)::bigint AS down,
			sum(sent)::bigint AS sent, sum(again)::bigint AS again
		FROM (
			SELECT relay_site, site, flows, transfers, up, down, sent, again FROM (
				SELECT line, sum(flows) AS flows, sum(transfers) AS transfers, sum(bytes_up) AS up, sum(bytes_down) AS down,
					sum(bytes_sent) AS sent, sum(bytes_retransmitted) AS again
				FROM longhaul.hours WHERE hour >= first_day AND hour < end_day GROUP BY line) AS l JOIN longhaul.lines USING (line) WHERE near
			UNION ALL
			SELECT relay_site, site, count(*), count(g), sum(bytes_up), sum(bytes_down), sum(sent), sum(again) FROM rest GROUP BY relay_site, site
		) AS parts GROUP BY relay_site, site
	), counts AS (
		SELECT relay_site, site, quantity, bin, sum(n) AS n
		FROM (
			SELECT relay_site, site, quantity, bin, n FROM (
				SELECT line, quantity, bin, sum(flows) AS n FROM longhaul.bins
				WHERE day >= first_day::date AND day < end_day::date GROUP BY line, quantity, bin) AS b JOIN longhaul.lines USING (line) WHERE near
			UNION ALL SELECT relay_site, site, 'g', g, count(*) FROM rest WHERE g IS NOT NULL GROUP BY relay_site, site, g
			UNION ALL SELECT relay_site, site, 't', t, count(*) FROM rest WHERE g IS NOT NULL GROUP BY relay_site, site, t
		) AS parts GROUP BY relay_site, site, quantity, bin
	), ranks AS (
		SELECT relay_site, site, quantity, bin, sum(n) OVER below AS upto, sum(n) OVER (PARTITION BY relay_site, site, quantity) AS total
		FROM counts WINDOW below AS (PARTITION BY relay_site, site, quantity ORDER BY bin)
	), quantiles AS (
		SELECT relay_site, site, min(bin) FILTER (WHERE quantity = 'g' AND upto >= ceil(0.5 * total)) AS g50,
			min(bin) FILTER (WHERE quantity = 'g' AND upto >= ceil(0.99 * total)) AS g99,
			min(bin) FILTER (WHERE quantity = 't' AND upto >= ceil(0.5 * total)) AS t50,
			min(bin) FILTER (WHERE quantity = 't' AND upto >= ceil(0.99 * total)) AS t99
		FROM ranks GROUP BY relay_site, site
	)
	SELECT relay_site, site, flows, transfers, up, down, again / nullif(sent, 0)::double precision,
		longhaul.middle(g50), longhaul.middle(g99), longhaul.middle(t50), longhaul.middle(t99)
	FROM cells LEFT JOIN quantiles USING (relay_site, site) ORDER BY up + down DESC, relay_site, site;
END $$;

GRANT EXECUTE ON FUNCTION longhaul.bin(double precision), longhaul.middle(integer), longhaul.matrix(timestamptz, timestamptz) TO PUBLIC;
