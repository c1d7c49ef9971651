"""The papers' tables: the steps that measure them, their forms, and their pages."""
