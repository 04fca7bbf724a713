"""A discrete-event P/D cluster whose right answers are known.

Owns: true time, the scenarios, the ground truth. Not: how a dialect tells the story (`pdtrace.simulate.emit`).
"""
