"""What can be measured of a runtime: metrics, and the times of its turns.

Reading order: `metrics`, `prometheus`, `turn_records`, `histograms`,
`collecting`.
"""
