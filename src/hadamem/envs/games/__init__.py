"""The tasks. Each file holds a task's rules, its `scene` (what a person sees) and its `keys` (how a person plays it).

Shared by several tasks: cards.py (decks), control.py (physics), plane.py and task_sets.py (Wind, Point Robot), rooms.py, rooms_scene.py
and room_tables.py (Visual Match, Key-to-Door).
"""
