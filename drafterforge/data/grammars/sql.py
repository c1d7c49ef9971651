"""SQL prompts: a schema and a question about it, asked as a query to write, explain, fix, speed up or port."""

# Templates and word lists keep one entry a line.
# ruff: noqa: E501

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from string import Formatter

from drafterforge.data.grammars.base import Writer, an, capital, fill, lines, phrased, singular

# One database a line. Every table has an id. Marks: = name, * category, # level (averages make
# sense), + amount (sums make sense too), @ date, > reference to the table of that row.
# No two databases share a table name: a query shown without its schema stays in one split.
SCHEMAS = lines("""
library | books: title=, genre*, price#, page_count#, published_on@ | readers: name=, city*, age#, joined_on@ | loans: book>, reader>, status*, fine+, borrowed_on@
web shop | customers: name=, country*, age#, signed_up_on@ | products: name=, category*, price#, stock+ | orders: customer>, product>, status*, quantity+, amount+, ordered_on@
hospital | doctors: name=, specialty*, salary#, hired_on@ | patients: name=, city*, age#, registered_on@ | appointments: doctor>, patient>, status*, fee+, scheduled_on@
university | students: name=, major*, gpa#, enrolled_on@ | courses: title=, department*, credits+ | enrolments: student>, course>, semester*, grade#
airline | airports: name=, country*, runway_count# | flights: airport>, airline*, duration_minutes#, passenger_count+, departed_on@ | bookings: flight>, seat_class*, price+, booked_on@
streaming service | movies: title=, genre*, rating#, duration_minutes#, released_on@ | viewers: name=, country*, age#, joined_on@ | views: movie>, viewer>, device*, watched_minutes+, viewed_on@
human resources | departments: name=, city*, budget+ | employees: name=, department>, job_title*, salary+, hired_on@ | absences: employee>, reason*, day_count+, started_on@
bank | depositors: name=, city*, age# | accounts: depositor>, account_type*, balance+, opened_on@ | transfers: account>, status*, amount+, sent_on@
restaurant | dishes: name=, category*, price#, calories# | waiters: name=, shift*, hourly_wage# | bills: dish>, waiter>, payment_method*, amount+, tip+, paid_on@
gym | trainers: name=, specialty*, hourly_rate# | members: name=, membership*, age#, joined_on@ | sessions: trainer>, member>, status*, duration_minutes+, held_on@
hotel | rooms: room_number=, room_type*, nightly_price#, floor# | guests: name=, country*, loyalty_points+ | stays: room>, guest>, status*, total_price+, arrived_on@
real estate | realtors: name=, city*, commission_rate# | properties: address=, property_type*, price#, floor_area# | viewings: realtor>, property>, outcome*, offer#, visited_on@
music label | artists: name=, genre*, monthly_listeners+ | albums: title=, artist>, format*, price#, released_on@ | tracks: title=, album>, language*, duration_seconds+, play_count+
football league | teams: name=, city*, budget# | players: name=, team>, position*, age#, goal_count+ | injuries: player>, severity*, missed_games+, happened_on@
warehouse | suppliers: name=, country*, rating# | parts: name=, supplier>, category*, unit_cost#, stock+ | shipments: part>, status*, quantity+, received_on@
help desk | agents: name=, team*, satisfaction# | callers: name=, plan*, monthly_fee+ | tickets: agent>, caller>, priority*, resolution_hours#, opened_on@
school | teachers: name=, subject*, salary#, hired_on@ | pupils: name=, grade_level*, age# | exams: teacher>, pupil>, term*, score#, taken_on@
car rental | cars: licence_plate=, brand*, daily_rate#, mileage# | drivers: name=, city*, age# | rentals: car>, driver>, status*, total_price+, rented_on@
city bikes | stations: name=, district*, dock_count+ | riders: name=, membership*, age# | trips: station>, rider>, bike_type*, distance_km+, started_on@
clinic lab | outpatients: name=, blood_type*, age# | tests: name=, category*, price# | results: outpatient>, test>, status*, measured_value#, measured_on@
news site | authors: name=, country*, article_fee# | articles: title=, author>, section*, word_count#, published_on@ | comments: article>, status*, like_count+, posted_on@
job board | companies: name=, industry*, employee_count# | vacancies: title=, company>, city*, salary#, posted_on@ | applications: vacancy>, status*, experience_years#, applied_on@
farm | fields: name=, soil_type*, area_hectares+ | crops: name=, season*, price_per_ton# | harvests: field>, crop>, quality*, yield_tons+, harvested_on@
museum | painters: name=, nationality*, birth_year# | paintings: title=, painter>, style*, estimated_value+ | exhibitions: title=, painting>, city*, visitor_count+, opened_on@
insurance | clients: name=, city*, age# | policies: policy_number=, client>, policy_type*, premium+, started_on@ | claims: policy>, status*, amount+, filed_on@
delivery | couriers: name=, vehicle*, rating# | restaurants: name=, cuisine*, average_price# | deliveries: courier>, restaurant>, status*, duration_minutes#, fee+, delivered_on@
event tickets | venues: name=, city*, capacity# | concerts: title=, venue>, genre*, ticket_price#, held_on@ | seats: concert>, seat_class*, price+, sold_on@
software team | developers: name=, seniority*, salary# | projects: name=, status*, budget+, started_on@ | commits: developer>, project>, branch*, changed_lines+, committed_on@
energy | households: address=, city*, resident_count# | meters: serial_number=, household>, meter_type*, installed_on@ | readings: meter>, tariff*, consumption_kwh+, read_on@
social network | users: username=, country*, follower_count#, joined_on@ | posts: title=, user>, topic*, like_count+, created_on@ | reports: post>, reason*, severity#, reported_on@
pet clinic | owners: name=, city*, phone_count# | pets: name=, owner>, species*, weight_kg#, born_on@ | visits: pet>, reason*, cost+, visited_on@
travel agency | tours: name=, destination*, price#, day_count# | travellers: name=, country*, age# | reservations: tour>, traveller>, status*, seat_count+, booked_on@
factory | machines: name=, production_line*, power_kw#, installed_on@ | operators: name=, shift*, hourly_wage# | runs: machine>, operator>, outcome*, unit_count+, started_on@
cinema | films: title=, genre*, duration_minutes#, released_on@ | halls: name=, screen_type*, capacity# | screenings: film>, hall>, language*, sold_tickets+, shown_on@
podcast platform | shows: name=, topic*, subscriber_count# | episodes: title=, show>, language*, duration_minutes#, published_on@ | downloads: episode>, country*, megabytes+, downloaded_on@
charity | donors: name=, country*, age# | campaigns: name=, cause*, goal#, launched_on@ | donations: donor>, campaign>, payment_method*, amount+, donated_on@
""")

VALUES = {
    "genre": "drama, comedy, thriller, fantasy, history, jazz, rock",
    "city": "Lisbon, Leeds, Oslo, Denver, Nairobi, Osaka, Lyon, Porto Alegre",
    "country": "Spain, Canada, Japan, Brazil, Kenya, Norway, India",
    "category": "basic, premium, seasonal, imported, organic",
    "status": "open, cancelled, completed, pending, late",
    "specialty": "cardiology, strength, pediatrics, surgery, yoga",
    "department": "physics, history, biology, sales, law",
    "priority": "low, medium, high, urgent",
    "payment_method": "cash, card, bank transfer, voucher",
    "shift": "morning, evening, night",
    "membership": "monthly, yearly, student, family",
    "position": "goalkeeper, defender, midfielder, forward",
    "language": "English, German, Korean, Arabic, French",
    "seat_class": "economy, business, standing, balcony",
    "device": "phone, tablet, television, laptop",
    "subject": "chemistry, music, geography, art",
    "major": "economics, computer science, nursing, philosophy",
    "job_title": "analyst, engineer, clerk, designer",
    "account_type": "checking, savings, joint",
    "species": "cat, dog, rabbit, parrot",
    "brand": "Toyota, Renault, Ford, Kia",
    "semester": "spring 2023, fall 2023, spring 2024",
}
VALUES = {column: values.split(", ") for column, values in VALUES.items()}
OTHER_VALUES = ["A", "B", "standard", "special", "regular"]

RANGES = {
    "rating": range(2, 5),
    "satisfaction": range(2, 5),
    "gpa": range(2, 4),
    "grade": range(50, 95, 5),
    "score": range(40, 95, 5),
    "age": range(18, 70),
    "floor": range(2, 9),
    "salary": range(30000, 90000, 2500),
    "birth_year": range(1850, 1990, 5),
    "severity": range(2, 9),
}
OTHER_RANGE = range(10, 500, 10)
INTEGERS = ("_count", "stock", "quantity", "_points", "_year", "floor", "credits", "calories")
MONEY = ("price", "fee", "salary", "wage", "rate", "cost", "budget", "premium", "fine", "amount")
UNITS = ("_minutes", "_seconds", "_km", "_kg", "_kw", "_kwh", "_tons", "_hectares")

DIALECTS = [
    "PostgreSQL",
    "MySQL",
    "SQLite",
    "SQL Server",
    "MariaDB",
    "Oracle",
    "BigQuery",
    "DuckDB",
]


@dataclass(frozen=True)
class Column:
    """A column, with the mark that says what may be asked about it."""

    name: str
    mark: str

    def __str__(self) -> str:
        return self.name

    @property
    def words(self) -> str:
        """The name in plain words, without its unit."""
        name = self.name
        for unit in UNITS:
            name = name.removesuffix(unit)
        return name.replace("_", " ")

    @property
    def type(self) -> str:
        """An SQL type that suits the mark."""
        if self.mark in "#+":
            return "INTEGER" if self.name == "age" or self.name.endswith(INTEGERS) else "NUMERIC(10, 2)"
        return {"=": "VARCHAR(100)", "*": "VARCHAR(40)", "@": "DATE", ">": "INTEGER"}[self.mark]


@dataclass(frozen=True)
class Table:
    """A table, its columns and the words for its rows."""

    name: str
    columns: tuple[Column, ...]

    def __str__(self) -> str:
        return self.name

    @property
    def row(self) -> str:
        """One row, in words."""
        return singular(self.name)

    @property
    def a_row(self) -> str:
        """One row with its article."""
        return an(self.row)

    def marked(self, marks: str) -> list[Column]:
        """The columns that carry one of the marks."""
        return [column for column in self.columns if column.mark in marks]


@dataclass(frozen=True)
class Question:
    """A kind of question: it is asked of every choice of columns that its slots allow."""

    task: str
    asks: tuple[str, ...]
    query: str = ""  # without one, the question is only asked, never explained or fixed

    def slots(self) -> set[str]:
        """Names of the tables and columns that the question speaks of."""
        texts = (self.task, *self.asks, self.query)
        fields = {field for text in texts for _, field, _, _ in Formatter().parse(text) if field}
        return {field.split(".")[0] for field in fields}


COLUMN_SLOTS = {"label": "=", "cat": "*", "num": "#+", "sum": "+", "date": "@"}

ONE_TABLE = (
    Question(
        "{table} with a given {cat}",
        (
            "List the {label} of every {table.row} whose {cat.words} is '{value}'.",
            "Show all {table} where {cat} equals '{value}', sorted by {label}.",
            "Which {table} have the {cat.words} '{value}'? Return their {label}.",
        ),
        "SELECT {label}\nFROM {table}\nWHERE {cat} = '{value}'\nORDER BY {label};",
    ),
    Question(
        "count of {table} per {cat}",
        (
            "How many {table} are there for each {cat.words}?",
            "Count the {table} per {cat.words}, largest group first.",
            "I need the number of {table} grouped by {cat}.",
        ),
        "SELECT {cat}, COUNT(*) AS total\nFROM {table}\nGROUP BY {cat}\nORDER BY total DESC;",
    ),
    Question(
        "average {num} of {table} per {cat}",
        (
            "What is the average {num.words} of {table} for each {cat.words}?",
            "Show every {cat.words} with the average {num.words} of its {table}, rounded to two decimals.",
            "Compute the mean {num} by {cat} in {table}.",
        ),
        "SELECT {cat}, ROUND(AVG({num}), 2) AS average_{num}\nFROM {table}\nGROUP BY {cat}\nORDER BY average_{num} DESC;",
    ),
    Question(
        "{table} with the highest {num}",
        (
            "Find the {n} {table} with the highest {num.words}.",
            "Show the top {n} {table} by {num}, with {label} and {num}.",
            "Give me {label} and {num} of the {n} {table} that lead in {num.words}.",
        ),
        "SELECT {label}, {num}\nFROM {table}\nORDER BY {num} DESC\nLIMIT {n};",
    ),
    Question(
        "{table} above the average {num}",
        (
            "Which {table} have {num.words} above the average of all {table}?",
            "List {label} and {num} of the {table} whose {num.words} is greater than the overall average.",
        ),
        "SELECT {label}, {num}\nFROM {table}\nWHERE {num} > (SELECT AVG({num}) FROM {table});",
    ),
    Question(
        "{table} with the highest {num} in each {cat}",
        (
            "For each {cat.words}, find the {table.row} with the highest {num.words}.",
            "Return one {table.row} per {cat.words}: the one with the largest {num}.",
            "Use a window function to rank the {table} by {num} within each {cat.words} and keep rank 1.",
        ),
        "SELECT {label}, {cat}, {num}\nFROM (\n  SELECT {label}, {cat}, {num},\n         RANK() OVER (PARTITION BY {cat} ORDER BY {num} DESC) AS place\n  FROM {table}\n) AS ranked\nWHERE place = 1;",
    ),
    Question(
        "{cat} values with many {table}",
        (
            "Which {cat.words} values have more than {n} {table}?",
            "List each {cat} that appears on more than {n} {table}, with the count.",
        ),
        "SELECT {cat}, COUNT(*) AS total\nFROM {table}\nGROUP BY {cat}\nHAVING COUNT(*) > {n};",
    ),
    Question(
        "total {sum} of {table} per {cat}",
        (
            "What is the total {sum.words} of {table} for each {cat.words}?",
            "Sum the {sum} of all {table} by {cat}, highest total first.",
            "Give each {cat.words} with its share of the total {sum.words} over all {table}, in percent.",
        ),
        "SELECT {cat}, SUM({sum}) AS total_{sum}\nFROM {table}\nGROUP BY {cat}\nORDER BY total_{sum} DESC;",
    ),
    Question(
        "{table} by date {date}",
        (
            "List all {table} whose {date} date is after {day}, newest first.",
            "Show the {table} with {date} in the year {year}.",
            "Which {table} have their {date} between {day} and the end of that year?",
            "Return the {table} whose {date} lies within the last {days} days.",
        ),
        "SELECT *\nFROM {table}\nWHERE {date} >= '{day}'\nORDER BY {date} DESC;",
    ),
    Question(
        "count of {table} per month of {date}",
        (
            "Give the monthly number of {table} since the start of {year}, based on {date}.",
            "How many {table} are there per month of {date}?",
            "Group the {table} by year and month of {date} and count them.",
        ),
        "SELECT EXTRACT(MONTH FROM {date}) AS month, COUNT(*) AS total\nFROM {table}\nWHERE {date} >= '{year}-01-01'\nGROUP BY EXTRACT(MONTH FROM {date})\nORDER BY month;",
    ),
    Question(
        "{table} without {num}",
        (
            "Find all {table} where the {num.words} is missing.",
            "How many {table} have no {num} value?",
            "List the {table} whose {num} is NULL, and replace the NULL by 0 in the output.",
        ),
        "SELECT *\nFROM {table}\nWHERE {num} IS NULL;",
    ),
    Question(
        "change {money} of {table} with a given {cat}",
        (
            "Increase the {money.words} of all {table} with {cat.words} '{value}' by {percent} percent.",
            "Write an UPDATE that lowers {money} by {percent} percent for the {table} where {cat} is '{value}'.",
            "For every {table.row} with {cat} '{value}', {money} should become {percent} percent higher. Write the UPDATE.",
        ),
        "UPDATE {table}\nSET {money} = {money} * 1.{percent:02d}\nWHERE {cat} = '{value}';",
    ),
    Question(
        "delete old {table} by {date}",
        (
            "Delete all {table} whose {date} is before {day}.",
            "Remove every {table.row} that is older than {days} days according to {date}, inside a transaction.",
        ),
        "DELETE FROM {table}\nWHERE {date} < '{day}';",
    ),
    Question(
        "duplicate {label} in {table}",
        (
            "Find every {label} that occurs more than once in {table}.",
            "Some {table} were entered twice. List the duplicated {label} values and how often each occurs.",
            "Delete duplicate {table} with the same {label}, keeping the one with the lowest id.",
        ),
        "SELECT {label}, COUNT(*) AS copies\nFROM {table}\nGROUP BY {label}\nHAVING COUNT(*) > 1;",
    ),
    Question(
        "second highest {num} of {table}",
        (
            "What is the second highest {num.words} among the {table}?",
            "Return the {table} with the second largest {num}.",
        ),
        "SELECT MAX({num}) AS second_highest\nFROM {table}\nWHERE {num} < (SELECT MAX({num}) FROM {table});",
    ),
    Question(
        "lowest and highest {num} of {table}",
        (
            "Show the minimum, maximum and average {num.words} of all {table}.",
            "What are the lowest and the highest {num} in {table}?",
        ),
        "SELECT MIN({num}) AS lowest, MAX({num}) AS highest, AVG({num}) AS average\nFROM {table};",
    ),
    Question(
        "{table} in bands of {num}",
        (
            "Use CASE to label each {table.row} 'high' when {num} is over {number} and 'low' otherwise.",
            "Classify the {table} as 'low', 'medium' or 'high' by {num}, with limits at {number} and three times that, and count each class.",
        ),
        "SELECT id,\n       CASE WHEN {num} > {number} THEN 'high' ELSE 'low' END AS band\nFROM {table};",
    ),
    Question(
        "running total of {sum} of {table} by {date}",
        (
            "Show the running total of {sum} over {date} for the {table}.",
            "For each {table.row}, ordered by {date}, give the cumulative {sum.words} so far.",
        ),
        "SELECT id, {date}, {sum},\n       SUM({sum}) OVER (ORDER BY {date}) AS running_total\nFROM {table};",
    ),
    Question(
        "search {label} of {table} by text",
        (
            "Find the {table} whose {label} starts with the letter {letter}.",
            "List all {table} with '{letter}' as the last letter of {label}, ignoring case.",
            "Which {table} have {an_letter} '{letter}' anywhere in their {label}?",
        ),
        "SELECT id, {label}\nFROM {table}\nWHERE {label} LIKE '{letter}%';",
    ),
    Question(
        "index for {table} by {cat} and {date}",
        (
            "We often filter {table} by {cat} and sort by {date}. Which index should I create?",
            "Write the CREATE INDEX statement that speeds up looking up {table} by {cat} with the newest {date} first.",
        ),
    ),
    Question(
        "view of {table} with a given {cat}",
        (
            "Create a view with only the {table} whose {cat} is '{value}'.",
            "Write a CREATE VIEW statement that hides every column of {table} except id and {cat}.",
        ),
    ),
    Question(
        "insert sample rows into {table}",
        (
            "Write an INSERT statement that adds {n} realistic sample rows to {table}.",
            "Generate {n} rows of test data for the {table} table as one INSERT.",
        ),
    ),
    Question(
        "constraint on {num} of {table}",
        (
            "Add a CHECK constraint so that {num} in {table} can never be negative.",
            "Alter {table} so that {num} is required and defaults to 0.",
        ),
    ),
    Question(
        "copy old {table} to an archive by {date}",
        (
            "Move all {table} with {date} before {day} into a table called {table}_archive.",
            "Write the statements that create {table}_archive and copy the {table} from before {year} into it, using {date}.",
        ),
    ),
)

TWO_TABLES = (
    Question(
        "number of {child} of each {parent}",
        (
            "How many {child} does each {parent.row} have? Include those with none.",
            "List every {parent.row} by {plabel} with the number of {child}.",
            "Count the {child} per {parent.row}, showing {plabel} and the count in descending order.",
        ),
        "SELECT p.{plabel}, COUNT(c.id) AS total\nFROM {parent} AS p\nLEFT JOIN {child} AS c ON c.{key} = p.id\nGROUP BY p.id, p.{plabel}\nORDER BY total DESC;",
    ),
    Question(
        "{parent} without {child}",
        (
            "Which {parent} have no {child} at all?",
            "Find the {plabel} of every {parent.row} that never appears in {child}.",
        ),
        "SELECT p.{plabel}\nFROM {parent} AS p\nLEFT JOIN {child} AS c ON c.{key} = p.id\nWHERE c.id IS NULL;",
    ),
    Question(
        "total {sum} of the {child} of each {parent}",
        (
            "What is the total {sum.words} of the {child} of each {parent.row}?",
            "Sum {sum} over the {child} for every {parent.row} and show the {n} largest totals with {plabel}.",
        ),
        "SELECT p.{plabel}, SUM(c.{sum}) AS total_{sum}\nFROM {parent} AS p\nJOIN {child} AS c ON c.{key} = p.id\nGROUP BY p.id, p.{plabel}\nORDER BY total_{sum} DESC;",
    ),
    Question(
        "{parent} with the most {child}",
        (
            "Which {parent.row} has the most {child}?",
            "Show the {plabel} of the {n} {parent} with the highest number of {child}.",
        ),
        "SELECT p.{plabel}, COUNT(*) AS total\nFROM {parent} AS p\nJOIN {child} AS c ON c.{key} = p.id\nGROUP BY p.id, p.{plabel}\nORDER BY total DESC\nLIMIT 1;",
    ),
    Question(
        "{child} of {parent} with a given {pcat}",
        (
            "List all {child} that belong to {parent} with {pcat.words} '{value}'.",
            "How many {child} are linked to {parent} whose {pcat} is '{value}'?",
        ),
        "SELECT c.*\nFROM {child} AS c\nJOIN {parent} AS p ON p.id = c.{key}\nWHERE p.{pcat} = '{value}';",
    ),
    Question(
        "average {num} of {child} per {pcat} of {parent}",
        (
            "What is the average {num.words} of {child} for each {pcat.words} of the {parent}?",
            "Join {child} with {parent} and show the mean {num} by {pcat}.",
        ),
        "SELECT p.{pcat}, AVG(c.{num}) AS average_{num}\nFROM {child} AS c\nJOIN {parent} AS p ON p.id = c.{key}\nGROUP BY p.{pcat};",
    ),
    Question(
        "latest {date} of the {child} of each {parent}",
        (
            "For each {parent.row}, show the most recent {date} among the {child}.",
            "Return every {parent.row} with the first and last {date} of the matching {child}.",
            "Get the latest of the {child} of each {parent.row}, using {date}.",
        ),
        "SELECT p.{plabel}, MAX(c.{date}) AS latest\nFROM {parent} AS p\nJOIN {child} AS c ON c.{key} = p.id\nGROUP BY p.id, p.{plabel};",
    ),
    Question(
        "{parent} with many {child}",
        (
            "Which {parent} have at least {n} {child}?",
            "List the {plabel} of {parent} with {n} or more {child}, and the count.",
        ),
        "SELECT p.{plabel}, COUNT(*) AS total\nFROM {parent} AS p\nJOIN {child} AS c ON c.{key} = p.id\nGROUP BY p.id, p.{plabel}\nHAVING COUNT(*) >= {n};",
    ),
    Question(
        "{child} listed with the {plabel} of their {parent}",
        (
            "Show every {child.row} with {cat} and the {plabel} of its {parent.row}.",
            "Join {child} and {parent} so that each line has the {plabel} and the {cat} of the {child.row}.",
        ),
        "SELECT c.id, p.{plabel}, c.{cat}\nFROM {child} AS c\nJOIN {parent} AS p ON p.id = c.{key}\nORDER BY p.{plabel};",
    ),
    Question(
        "{parent} with {child} of a given {cat}",
        (
            "Which {parent} have at least one of the {child} with {cat.words} '{value}'? Use EXISTS.",
            "Find the {parent} that have {child}, but none with {cat} '{value}'.",
        ),
        "SELECT p.{plabel}\nFROM {parent} AS p\nWHERE EXISTS (\n  SELECT 1 FROM {child} AS c\n  WHERE c.{key} = p.id AND c.{cat} = '{value}'\n);",
    ),
    Question(
        "{cat} of {child} as columns for each {parent}",
        (
            "For every {parent.row}, count the {child} with {cat.words} '{value}' and those with any other value, in two columns.",
            "Pivot the {child} so that each {parent.row} is one row and each {cat.words} is a column with the count.",
        ),
        "SELECT p.{plabel},\n       SUM(CASE WHEN c.{cat} = '{value}' THEN 1 ELSE 0 END) AS matching,\n       SUM(CASE WHEN c.{cat} <> '{value}' THEN 1 ELSE 0 END) AS other\nFROM {parent} AS p\nJOIN {child} AS c ON c.{key} = p.id\nGROUP BY p.id, p.{plabel};",
    ),
    Question(
        "foreign key from {child} to {parent}",
        (
            "Add a foreign key from {child} to {parent} that deletes the {child} together with their {parent.row}.",
            "Write the ALTER TABLE that makes {key} in {child} reference {parent}, and an index on it.",
        ),
    ),
)

DESIGN = (
    "Design a small relational schema for {a_schema} database with the tables {names}. Write the CREATE TABLE statements with primary and foreign keys.",
    "Write {dialect} DDL for {a_schema} application. It needs {names}; choose sensible columns and types.",
    "I am starting {a_schema} project in {dialect}. Suggest CREATE TABLE statements for {names} and explain the relations.",
)

CONCEPTS = lines("""
WHERE and HAVING
INNER JOIN and LEFT JOIN
UNION and UNION ALL
DELETE, TRUNCATE and DROP
a primary key and a unique key
CHAR and VARCHAR
a view and a materialized view
COUNT(*) and COUNT(column)
RANK, DENSE_RANK and ROW_NUMBER
a clustered and a non-clustered index
a subquery and a common table expression
IN and EXISTS
a stored procedure and a function
OLTP and OLAP databases
normalization and denormalization
a star schema and a snowflake schema
optimistic and pessimistic locking
READ COMMITTED and SERIALIZABLE isolation
a temporary table and a CTE
NULL and an empty string
CROSS JOIN and FULL OUTER JOIN
a correlated and an uncorrelated subquery
GROUP BY and PARTITION BY
ON and USING in a join
LIMIT with OFFSET and keyset pagination
row stores and column stores
BETWEEN and a pair of comparisons
COALESCE and NULLIF
ON DELETE CASCADE and ON DELETE SET NULL
a hash join and a nested loop join
LAG and LEAD
a surrogate key and a natural key
DATE and TIMESTAMP
DECIMAL and FLOAT
a partial index and a composite index
""")

CONCEPT_ASKS = (
    "Explain the difference between {concept} in SQL, with a short example.",
    "What is the difference between {concept}? When should I use each in {dialect}?",
    "I have a database interview tomorrow. Explain {concept} as simply as you can and show a query.",
    "Compare {concept} in {dialect}. Use a small table of your own to show the effect.",
)

LAYOUTS = ("plain", "plain", "create", "create", "bullets", "prose")
PROMPTS = (
    "{schema}\n\n{ask}",
    "{schema}\n\nWrite {a_dialect} query for this question: {ask}",
    "{schema}\n\nQuestion: {ask}\nSQL:",
    "Given this {dialect} schema:\n\n{schema}\n\n{ask} {closing}",
    "{ask}\n\nSchema:\n{schema}\n\n{closing}",
    "I use {dialect}. These are my tables:\n\n{schema}\n\n{ask} {closing}",
    "Translate the request into SQL.\n\n{schema}\n\nRequest: {ask}",
    "Hi, I need help with a {dialect} database.\n{schema}\n\n{ask} {closing}",
    "You are an SQL assistant. Answer with one {dialect} statement.\n\n{schema}\n\n{ask}",
)
CLOSINGS = (
    "Return only the query.",
    "Explain the query in one or two sentences.",
    "Keep the SQL readable.",
    "Please use short table aliases.",
    "Thanks!",
    "Format it nicely and add a comment.",
    "Mention any index that would help.",
)
EXPLAIN = (
    "Explain what this query does, clause by clause.\n\n{code}",
    "What does this {dialect} query return? Answer in plain English.\n\n{code}",
    "A colleague left this in our code base. Please explain it to a beginner.\n\n{code}",
    "Add comments to this SQL so that a new team member understands it.\n\n{code}",
    "{schema}\n\nDescribe the result of the following statement.\n\n{code}",
)
FIX = (
    "This query should answer: {ask} But {complaint}. Fix it.\n\n{code}",
    "What is wrong with this {dialect} query? {complaint_start}.\n\n{code}",
    "{schema}\n\nI wrote the following, but {complaint}. Correct the query and explain the mistake.\n\n{code}",
    "Debug this SQL, please: {complaint}.\n\n{code}",
)
IMPROVE = (
    "This {dialect} query is slow on {rows} rows. How can I make it faster?\n\n{code}",
    "Review this SQL for readability and performance, then write a better version.\n\n{code}",
    "Rewrite this query using a common table expression.\n\n{code}",
    "Convert this {dialect} statement to {other} and list what changes.\n\n{code}",
    'Does this query really answer "{ask}"? Point out any edge case it misses.\n\n{code}',
    "{schema}\n\nWhich indexes would you create for this query, and why?\n\n{code}",
)
# (pattern, replacement, what the user sees): one mistake put into a correct query.
MISTAKES = (
    (r"\nGROUP BY [^\n;]*", "", "it complains that a column must appear in the GROUP BY clause"),
    (r"HAVING", "WHERE", "I get a syntax error near WHERE"),
    (r"IS NULL", "= NULL", "it returns no rows although there should be some"),
    (r"LEFT JOIN", "JOIN", "some rows are missing from the result"),
    (r" ON [^\n]*", "", "the join fails with a syntax error"),
    (r"= '([^']*)'", r"= \1", "it says that the column does not exist"),
    (r" DESC", "", "the order of the result is reversed"),
    (r"(MAX|SUM|AVG)\((\S+)\)", r"\1 \2", "the database reports a syntax error"),
    (r"\nFROM ", "\nFORM ", "it does not run at all"),
    (r"^SELECT ", "SELECT , ", "there is a syntax error in the first line"),
    (r"^(UPDATE|DELETE FROM) (\w+)", r"\1 table \2", "I get a syntax error at the table name"),
)


def tasks() -> Iterator[tuple[str, Writer]]:
    """Every (schema, question) pair and every concept, each with its writer."""
    for line in SCHEMAS:
        schema, *parts = line.split(" | ")
        tables = {table.row: table for table in map(parse_table, parts)}
        yield from schema_tasks(schema, tables)
    for concept in CONCEPTS:
        yield f"concept: {concept}", phrased(CONCEPT_ASKS, concept=concept, dialect=DIALECTS)


def parse_table(part: str) -> Table:
    """`books: title=, pages#` as a table."""
    name, columns = part.split(": ")
    marked = [(column[:-1], column[-1]) for column in columns.split(", ")]
    return Table(name, tuple(Column(f"{col}_id" if mark == ">" else col, mark) for col, mark in marked))


def schema_tasks(schema: str, tables: dict[str, Table]) -> Iterator[tuple[str, Writer]]:
    """The questions that one schema allows."""
    everything = tuple(tables.values())
    seen = set()
    for question, bound in bindings(tables):
        task = f"{schema}: {question.task.format_map(bound)}"
        if task not in seen:  # two labels or categories may give the same task: keep the first
            seen.add(task)
            yield task, partial(write_question, question, bound, everything)
    names = ", ".join(map(str, everything))
    yield (
        f"{schema}: design",
        phrased(DESIGN, a_schema=an(schema), names=names, dialect=DIALECTS),
    )


def bindings(tables: dict[str, Table]) -> Iterator[tuple[Question, dict[str, object]]]:
    """Each question with each choice of tables and columns for its slots."""
    for table in tables.values():
        columns = {slot: table.marked(marks) for slot, marks in COLUMN_SLOTS.items()}
        columns["money"] = [num for num in columns["num"] if num.name.endswith(MONEY)]
        yield from choices(ONE_TABLE, columns, table=table)
        for key in table.marked(">"):
            parent = tables[key.name.removesuffix("_id")]
            columns |= {"plabel": parent.marked("="), "pcat": parent.marked("*")}
            yield from choices(TWO_TABLES, columns, child=table, parent=parent, key=key)


def choices(
    questions: tuple[Question, ...], columns: dict[str, list[Column]], **bound: object
) -> Iterator[tuple[Question, dict[str, object]]]:
    """Each question with each choice of columns."""
    for question in questions:
        used = sorted(columns.keys() & question.slots())
        for choice in product(*(columns[slot] for slot in used)):
            yield question, {**bound, **dict(zip(used, choice, strict=True))}


def write_question(
    question: Question, bound: dict[str, object], everything: tuple[Table, ...], rng: random.Random
) -> str:
    """One prompt for a question: mostly a query to write, else a given query to work on."""
    values = {**bound, **drawn_values(bound, rng)}
    about = [table for table in everything if table in bound.values()]
    shown = everything if rng.random() < 0.3 else tuple(about)
    dialect, other = rng.sample(DIALECTS, 2)
    slots = {
        "schema": show_schema(shown, rng),
        "dialect": dialect,
        "a_dialect": an(dialect),
        "other": other,
        "closing": CLOSINGS,
        "rows": ["2 million", "50 million", "800,000"],
    }
    kind = rng.random()
    if kind < 0.6 or not question.query:
        ask = rng.choice(question.asks).format_map(values)
        return fill(rng, rng.choice(PROMPTS), ask=ask, **slots)
    slots["ask"] = question.asks[0].format_map(values)  # the one that the query answers
    query = question.query.format_map(values)
    if kind < 0.72:
        return fill(rng, rng.choice(EXPLAIN), code=fenced(query), **slots)
    if kind < 0.86:
        query, complaint = broken(query, rng)
        seen = {"complaint": complaint, "complaint_start": capital(complaint)}
        return fill(rng, rng.choice(FIX), code=fenced(query), **seen, **slots)
    return fill(rng, rng.choice(IMPROVE), code=fenced(query), **slots)


def drawn_values(bound: dict[str, object], rng: random.Random) -> dict[str, object]:
    """Literals for the question: a category value, numbers, dates, a letter."""
    category = str(bound.get("cat") or bound.get("pcat") or "")
    number = str(bound.get("num") or "")
    year, letter = rng.randint(2018, 2024), rng.choice("ABCDEGKLMPRST")
    return {
        "value": rng.choice(VALUES.get(category, OTHER_VALUES)),
        "number": rng.choice(RANGES.get(number, OTHER_RANGE)),
        "n": rng.choice((3, 4, 5, 8, 10, 20)),
        "percent": rng.choice((3, 5, 8, 10, 15, 20)),
        "days": rng.choice((7, 14, 30, 60, 90)),
        "year": year,
        "day": f"{year}-{rng.randint(1, 12):02d}-{rng.choice((1, 15)):02d}",
        "letter": letter,
        "an_letter": "an" if letter in "AELMRS" else "a",
    }


def show_schema(tables: tuple[Table, ...], rng: random.Random) -> str:
    """The tables as the user may paste them."""
    layout = rng.choice(LAYOUTS)
    if layout == "create":
        return "\n".join(map(create_table, tables))
    if layout == "plain":
        return "\n".join(f"{table}({listed(table)})" for table in tables)
    if layout == "bullets":
        return "Tables:\n" + "\n".join(f"- {table}: {listed(table)}" for table in tables)
    return " ".join(f"The table {table} has the columns {listed(table)}." for table in tables)


def listed(table: Table) -> str:
    """The column names of a table, id first."""
    return ", ".join(["id", *map(str, table.columns)])


def create_table(table: Table) -> str:
    """The CREATE TABLE statement of a table."""
    columns = ["id INTEGER PRIMARY KEY", *(f"{col} {col.type}" for col in table.columns)]
    return f"CREATE TABLE {table} (\n  " + ",\n  ".join(columns) + "\n);"


def broken(query: str, rng: random.Random) -> tuple[str, str]:
    """The query with one mistake in it, and what its author complains about."""
    fitting = [mistake for mistake in MISTAKES if re.search(mistake[0], query)]
    pattern, replacement, complaint = rng.choice(fitting)
    return re.sub(pattern, replacement, query, count=1), complaint


def fenced(query: str) -> str:
    """The query as a Markdown code block."""
    return f"```sql\n{query}\n```"
