SELECT
    relay_site AS from_site,
    coalesce(site, peer, '') AS to_site,
    count() AS flows,
    countIf(bytes_up + bytes_down > 0) AS transfers,
    sum(bytes_up) AS sum_bytes_up,
    sum(bytes_down) AS sum_bytes_down,
    sum(coalesce(client_bytes_retransmitted, 0) + coalesce(target_bytes_retransmitted, 0)) AS sum_bytes_retransmitted,
    quantileExactIf(0.5)(elapsed_us, bytes_up + bytes_down > 0) AS elapsed_us_p50,
    quantileExactIf(0.99)(elapsed_us, bytes_up + bytes_down > 0) AS elapsed_us_p99
FROM flows FINAL
WHERE ended >= now() - 86400 AND coalesce(client_side, '') != 'wan'
GROUP BY from_site, to_site
ORDER BY from_site, to_site
