"""Maths prompts: situations with numbers drawn so that the answer is sane, and bare exercises."""

# Templates and word lists keep one entry a line.
# ruff: noqa: E501

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from drafterforge.data.grammars.base import Writer, an, capital, fill, lines, phrased, rows

NAMES = lines("""
Amara Ben Chloe Diego Elif Farid Grace Hanna Ivan Jade Kofi Lena Marco Nadia Omar Priya Quinn Rosa
Samir Tess Uma Victor Wei Yara Zoe Arjun Bianca Carlos Dana Emil Fiona Hugo Ines Jonas Keiko Liam
""")
NAMES = [name for line in NAMES for name in line.split()]

CLOSINGS = ("", "", "", " Solve it step by step.", " Show your work.", " Explain your reasoning.",
            " Give the final answer on its own line.", " Think carefully before you answer.")  # fmt: skip
OPENINGS = ("", "", "", "", "", "Solve this problem: ", "Please help me with my homework. ",
            "Math question: ", "Word problem. ")  # fmt: skip


@dataclass(frozen=True)
class Problem:
    """A kind of question: phrasings that share their numbers."""

    kind: str
    texts: tuple[str, ...]
    numbers: dict[str, object]


def problem(kind: str, *texts: str, **numbers: object) -> Problem:
    """A problem; its numbers are slots of `fill`."""
    return Problem(kind, texts, numbers)


# where | one | many | lowest and highest price in dollars
GOODS = lines("""
a bakery | muffin | muffins | 2 4
a bakery | loaf of bread | loaves of bread | 3 6
a coffee shop | cup of coffee | cups of coffee | 3 5
a bookstore | notebook | notebooks | 2 7
a bookstore | paperback | paperbacks | 6 14
a toy store | puzzle | puzzles | 8 20
a toy store | box of blocks | boxes of blocks | 10 30
a farm stand | basket of berries | baskets of berries | 4 9
a farm stand | jar of honey | jars of honey | 6 12
a garden center | rose bush | rose bushes | 9 18
a garden center | bag of soil | bags of soil | 5 11
a pet shop | bag of cat food | bags of cat food | 8 25
a shoe store | pair of socks | pairs of socks | 3 8
a clothing store | T-shirt | T-shirts | 8 20
a clothing store | winter hat | winter hats | 9 22
a cinema | ticket | tickets | 8 15
a music shop | guitar string | guitar strings | 2 6
a hardware store | box of nails | boxes of nails | 3 9
a hardware store | can of paint | cans of paint | 15 40
a stationery shop | pack of pencils | packs of pencils | 2 5
a stationery shop | sketchbook | sketchbooks | 5 13
a fish market | pound of salmon | pounds of salmon | 9 16
a supermarket | carton of milk | cartons of milk | 2 4
a supermarket | bag of rice | bags of rice | 4 12
a supermarket | melon | melons | 3 6
an ice cream parlor | sundae | sundaes | 4 8
a pizzeria | pizza | pizzas | 9 18
a flower shop | bunch of tulips | bunches of tulips | 5 12
a sports store | tennis ball | tennis balls | 2 5
a sports store | swimming cap | swimming caps | 6 14
a school fair | raffle ticket | raffle tickets | 2 4
a craft market | candle | candles | 4 15
a craft market | bracelet | bracelets | 5 19
an electronics store | charging cable | charging cables | 6 18
a museum shop | postcard | postcards | 2 3
a juice bar | smoothie | smoothies | 4 8
a tea house | tin of tea | tins of tea | 7 16
a street market | sack of potatoes | sacks of potatoes | 6 14
""")

GOODS_PROBLEMS = (
    problem(
        "total cost",
        "At {place}, {one_a} costs ${price}. {name} buys {n} {many}. How much does {name} pay?",
        "{name} wants {n} {many} from {place}. If one costs ${price}, what is the total?",
        n=range(3, 25),
    ),
    problem(
        "change",
        "{name} buys {n} {many} for ${price} each at {place} and pays with ${paid}. How much change does {name} get?",
        "{place_cap} sells {many} for ${price} each. {name} takes {n} and hands over ${paid}. What is the change?",
        n=range(2, 9),
        paid=lambda n, price, **_: (n * price // 10 + 1) * 10,
    ),
    problem(
        "budget",
        "{name} has ${budget} to spend at {place}, where {one_a} costs ${price}. How many {many} can {name} buy, and how much money is left?",
        "With ${budget}, what is the largest number of {many} at ${price} each that {name} can buy at {place}?",
        budget=range(45, 160),
    ),
    problem(
        "discount",
        "{place_cap} offers {percent}% off. {one_a_cap} normally costs ${price}. What do {n} {many} cost with the discount?",
        "{name} buys {n} {many} at ${price} each and has a coupon for {percent}% off the whole purchase. How much does {name} pay?",
        n=range(2, 15),
        percent=(10, 20, 25, 30, 40, 50),
    ),
    problem(
        "sales tax",
        "{name} buys {n} {many} at {place} for ${price} each. The sales tax is {percent}%. What is the final bill?",
        n=range(2, 20),
        percent=(5, 6, 8, 10),
    ),
    problem(
        "bulk offer",
        "{place_cap} sells {many} for ${price} each, or {pack} for ${offer}. How much does {name} save by taking {packs} such offers instead of single ones?",
        pack=range(3, 7),
        packs=range(2, 6),
        offer=lambda price, pack, **_: price * pack - max(1, pack // 2),
    ),
    problem(
        "packs needed",
        "{name} needs {need} {many} for a party. {place_cap} sells them in packs of {pack}, each pack for ${offer}. How many packs are needed and what do they cost?",
        need=range(20, 70),
        pack=(4, 6, 8, 12),
        offer=lambda price, pack, **_: price * pack - 2,
    ),
    problem(
        "profit",
        "The owner of {place} buys {many} for ${cost} and sells them for ${price} each. What is the profit on {n} {many}?",
        "{place_cap} pays ${cost} for {one_a} and asks ${price}. After selling {n} of them, how large is the profit?",
        n=range(10, 90, 5),
        cost=lambda price, **_: max(1, price // 2),
    ),
    problem(
        "daily sales",
        "{place_cap} sold {first} {many} on Monday, {times} times as many on Tuesday and {more} more on Wednesday than on Tuesday. How many {many} were sold in the three days?",
        "On Monday {place} sold {first} {many}. On Tuesday it sold {times} times that number, and on Wednesday {more} more than on Tuesday. At ${price} each, what was the income of all three days?",
        first=range(8, 40),
        times=(2, 3),
        more=range(4, 20),
    ),
    problem(
        "splitting the bill",
        "{name}, {friend} and {others} other friends share {n} {many} that cost ${price} each. If they split the bill equally, what does each person pay?",
        others=(1, 2, 3, 4),
        n=lambda others, **_: (others + 2) * 3,
    ),
    problem(
        "price increase",
        "Last year {one_a} at {place} cost ${price}. The price went up by {percent}%. What do {n} {many} cost now?",
        percent=(5, 10, 20, 25, 50),
        n=range(2, 12),
    ),
    problem(
        "comparing two buyers",
        "{name} bought {n} {many} at ${price} each. {friend} bought {more} more than {name} and paid $1 less for each. Who spent more, and by how much?",
        n=range(4, 15),
        more=range(1, 6),
    ),
    problem(
        "stock left",
        "{place_cap} starts the week with {stock} {many}. It sells {daily} a day for {days} days and then receives a delivery of {delivery}. How many {many} are there now?",
        daily=range(6, 20),
        days=range(3, 7),
        stock=lambda daily, days, **_: daily * days + 35,
        delivery=range(20, 80, 5),
    ),
    problem(
        "unknown price",
        "{name} paid ${total} for {n} {many} and one bag for ${bag}. What does {one_a} cost?",
        "{n} {many} and a ${bag} gift box cost ${total} together at {place}. Find the price of one.",
        n=range(3, 12),
        bag=range(1, 5),
        total=lambda n, price, bag, **_: n * price + bag,
    ),
)

# where | members
GROUPS = lines("""
a school | students
a choir | singers
a summer camp | children
a company | employees
an orchestra | musicians
a village | residents
a library | books
a zoo | animals
a parking garage | cars
a farm | sheep
an orchard | trees
an aquarium | fish
a museum | paintings
a gym | members
a conference | visitors
a stamp album | stamps
a warehouse | boxes
a ferry | passengers
a sports club | athletes
a garden | flowers
a fleet | trucks
a theater | seats
a toolbox | screws
a jar | buttons
a hotel | rooms
a city park | benches
a bee yard | hives
a news site | articles
a phone | photos
a marathon | runners
""")

GROUP_PROBLEMS = (
    problem(
        "fraction of a group",
        "There are {total} {members} in {place}. {fraction} of the {members} are new. How many {members} are not new?",
        "{place_cap} has {total} {members}, and {fraction} of them were added this year. How many were there before?",
        fraction=("1/2", "1/3", "1/4", "2/3", "3/4", "1/6", "5/6"),
        total=range(36, 600, 12),
    ),
    problem(
        "percentage of a group",
        "{place_cap} has {total} {members}. {percent}% of them get a red label, and the rest a blue one. How many get each color?",
        "Of the {total} {members} in {place}, {percent}% were counted in the morning. How many remained to be counted?",
        percent=(5, 10, 15, 20, 35, 40, 60, 75, 80),
        total=range(100, 900, 20),
    ),
    problem(
        "ratio of two kinds",
        "The ratio of old to new {members} in {place} is {a}:{b}. There are {total} {members} in all. How many are old?",
        "In {place} there are {a} large {members} for every {b} small ones, {total} in total. How many more of one kind are there than of the other?",
        a=range(2, 6),
        b=(1, 7, 8, 9),
        k=range(6, 30),
        total=lambda a, b, k, **_: (a + b) * k,
    ),
    problem(
        "rows and remainder",
        "{total} {members} from {place} are arranged in rows of {row}. How many full rows are there, and how many are left over?",
        row=range(6, 15),
        total=range(100, 400),
    ),
    problem(
        "growth over the years",
        "{place_cap} had {total} {members}. The number grew by {percent}% in the first year and by another {more} in the second. How many are there now?",
        percent=(5, 10, 20, 25, 50),
        total=range(100, 800, 20),
        more=range(10, 90),
    ),
    problem(
        "arrivals and departures",
        "In the morning there were {total} {members} in {place}. By noon the number fell by {out}, and by evening it rose by {times} times that amount. How many are there now?",
        "{place_cap} counts {total} {members}. First the number drops by {out}, later it grows by {times} times as many. What is the new total?",
        out=range(5, 40),
        times=(2, 3, 4),
        total=range(60, 300),
    ),
    problem(
        "unknown total",
        "{part} {members} make up {percent}% of all {members} in {place}. How many {members} are there altogether?",
        percent=(5, 10, 20, 25, 40),
        k=range(3, 30),
        part=lambda percent, k, **_: percent * k // 5,
    ),
)

# traveller | lowest and highest speed | unit
TRAVEL = lines("""
a train | 60 140 | miles
a cyclist | 10 20 | miles
a bus | 30 55 | miles
a delivery van | 30 60 | miles
a sailing boat | 6 15 | miles
a runner | 6 10 | miles
a truck | 40 65 | miles
a motorcycle | 40 70 | miles
a hiker | 2 4 | miles
a drone | 15 40 | kilometers
a tram | 20 45 | kilometers
a small plane | 150 300 | kilometers
a horse rider | 10 20 | kilometers
a ferry | 15 40 | kilometers
a tractor | 15 35 | kilometers
a skater | 10 22 | kilometers
""")

TRAVEL_PROBLEMS = (
    problem(
        "distance",
        "{who_cap} moves at {speed} {unit} per hour for {hours} hours and then at {slow} {unit} per hour for another hour. How far does it get in total?",
        hours=range(2, 7),
        slow=lambda speed, **_: max(1, speed // 2),
    ),
    problem(
        "travel time",
        "How long does {who} need for {far} {unit} at a steady {speed} {unit} per hour, with a break of {rest} minutes?",
        "A trip of {far} {unit} is made by {who} at {speed} {unit} per hour. There is one stop of {rest} minutes. How long does the trip take?",
        hours=range(2, 6),
        far=lambda speed, hours, **_: speed * hours,
        rest=(10, 15, 20, 30, 45),
    ),
    problem(
        "average speed",
        "{who_cap} covers {first} {unit} in {a} hours and then {second} {unit} in {b} hours. What is the average speed for the whole trip?",
        a=range(2, 5),
        b=range(2, 5),
        first=lambda speed, a, **_: speed * a,
        second=lambda speed, b, **_: max(2, speed - 2) * b,
    ),
    problem(
        "meeting",
        "{who_cap} leaves town A at {speed} {unit} per hour. At the same time another one leaves town B towards it at {other} {unit} per hour. The towns are {far} {unit} apart. After how many hours do they meet?",
        other=lambda speed, **_: speed + 4,
        hours=range(2, 6),
        far=lambda speed, other, hours, **_: (speed + other) * hours,
    ),
    problem(
        "catching up",
        "{who_cap} starts at {speed} {unit} per hour. {head} hours later a second one follows on the same road at {other} {unit} per hour. When does the second catch up?",
        head=(2, 3, 4),
        other=lambda speed, **_: speed * 2,
    ),
    problem(
        "arrival time",
        "{who_cap} leaves at {start}:15 and travels {far} {unit} at {speed} {unit} per hour. At what time does it arrive?",
        start=range(6, 12),
        hours=range(2, 6),
        far=lambda speed, hours, **_: speed * hours,
    ),
    problem(
        "return trip",
        "{who_cap} goes {far} {unit} out at {speed} {unit} per hour and comes back the same way at half that speed. How long does the round trip take?",
        hours=range(1, 5),
        far=lambda speed, hours, **_: speed * hours,
    ),
)

# one worker | does | units
WORK = lines("""
a printer | prints | pages
a baker | bakes | rolls
a pump | moves | liters of water
a machine | fills | bottles
a gardener | plants | bulbs
a painter | paints | square meters
a typist | types | pages
a robot | packs | parcels
a tailor | sews | shirts
a mason | lays | bricks
a picker | picks | kilograms of apples
a potter | makes | bowls
a volunteer | folds | flyers
a cook | prepares | meals
a mechanic | checks | bicycles
a 3D printer | makes | parts
a nurse | sees | patients
a courier | delivers | letters
""")

WORK_PROBLEMS = (
    problem(
        "output of several",
        "{who_cap} {does} {rate} {units} in an hour. How many {units} do {n} of them manage in {hours} hours?",
        n=range(2, 9),
        hours=range(3, 9),
    ),
    problem(
        "time for a job",
        "{who_cap} {does} {rate} {units} per hour. How many hours do {n} working together need for {total} {units}?",
        n=range(2, 7),
        hours=range(3, 9),
        total=lambda rate, n, hours, **_: rate * n * hours,
    ),
    problem(
        "different rates",
        "{who_cap} {does} {rate} {units} per hour, and a faster one {faster}. Working together, how many {units} do they finish in {hours} hours?",
        faster=lambda rate, **_: rate + 6,
        hours=range(2, 9),
    ),
    problem(
        "more workers, less time",
        "A job that {who} can do takes {n} of them {hours} hours. How many hours would {more} of them need at the same pace?",
        n=(3, 4, 6),
        hours=(4, 6, 8, 12),
        more=lambda n, **_: n * 2,
    ),
    problem(
        "working together",
        "{who_cap} finishes a job in {a} hours, and a slower one in {b} hours. How long do the two take together?",
        a=(3, 4, 6),
        b=lambda a, **_: a * 2,
    ),
    problem(
        "pay per piece",
        "A job pays ${pay} for every 10 {units}. {who_cap} {does} {rate} {units} an hour, {hours} hours a day. How much money does that bring in {days} days?",
        pay=range(2, 9),
        hours=range(4, 9),
        days=range(3, 6),
    ),
)

# a place | its unit
RECTANGLES = lines("""
a vegetable garden | meters
a living room | feet
a playground | meters
a swimming pool | meters
a picture frame | centimeters
a football pitch | meters
a parking lot | meters
a table top | centimeters
a poster | inches
a barn floor | feet
a terrace | meters
a bedroom wall | feet
a rug | feet
a rice field | meters
""")

RECTANGLE_PROBLEMS = (
    problem("area", "{place_cap} is {long} {unit} long and {wide} {unit} wide. What is its area?"),
    problem(
        "perimeter",
        "What is the perimeter of {place} that measures {long} by {wide} {unit}?",
        "{name} walks once around the edge of {place} with sides of {long} and {wide} {unit}. How far is that?",
    ),
    problem(
        "missing side",
        "{place_cap} has an area of {area} square {unit} and a width of {wide} {unit}. How long is it, and what is its perimeter?",
        area=lambda long, wide, **_: long * wide,
    ),
    problem(
        "cost of the edge",
        "A border around {place} of {long} by {wide} {unit} costs ${cost} per unit of length. What does the whole border cost?",
        cost=range(3, 15),
    ),
    problem(
        "tiles",
        "{place_cap} of {long} by {wide} {unit} is covered with square tiles with sides of 1/2 {one_unit}. How many tiles are needed?",
    ),
    problem(
        "scaling",
        "Both sides of {place}, {long} and {wide} {unit}, are multiplied by {k}. By what factor does the area grow, and what is the new area?",
        k=(2, 3, 4, 5),
    ),
    problem(
        "ratio of sides",
        "The length of {place} is {k} times its width, and the perimeter is {around} {unit}. Find both sides.",
        k=(2, 3, 4),
        around=lambda wide, k, **_: 2 * wide * (k + 1),
    ),
    problem(
        "path around",
        "A path {path} {unit} wide runs around {place} of {long} by {wide} {unit}, on the outside. What is the area of the path?",
        path=(1, 2, 3),
    ),
)

# what is measured
DATA = lines("""
test scores
daily temperatures in degrees Celsius
minutes of homework
weekly book sales
goals per match
heights of seedlings in centimeters
waiting times in minutes
steps in thousands per day
ages of club members
prices of used bikes in dollars
hours of sleep
numbers of visitors per hour
shoe sizes
rainfall per month in millimeters
points in a game
commuting times in minutes
numbers of siblings plus pets
e-mails per day
weights of parcels in kilograms
lap times in seconds
""")

DATA_PROBLEMS = (
    problem("mean", "These are the {what} that {name} wrote down: {values}. What is the mean?"),
    problem("median", "Find the median of these {what}: {values}."),
    problem("range", "What are the range and the mode, if there is one, of these {what}: {values}?"),
    problem(
        "missing value",
        "The mean of five {what} is {mean}. Four of them are {a}, {b}, {c} and {d}. What is the fifth?",
        mean=range(24, 32),
        a=range(18, 30),
        b=range(18, 30),
        c=range(20, 34),
        d=range(20, 34),
    ),
    problem(
        "new mean",
        "{name} recorded these {what}: {values}. A new value of {new} is added. How does the mean change?",
        new=range(10, 60),
    ),
    problem("spread", "Compute the variance and the standard deviation of these {what}: {values}."),
)

# a container | things in it | two kinds
DRAWS = lines("""
a bag | marbles | red blue
a drawer | socks | black white
a box | pens | green blue
a bowl | candies | lemon cherry
a hat | tickets | winning losing
a basket | apples | green red
a deck | cards | picture number
a crate | bulbs | working broken
""")

DRAW_PROBLEMS = (
    problem("one draw", "{box_cap} holds {a} {one} and {b} {two} {things}. One is drawn at random. What is the probability that it is {one}?"),
    problem("two draws without replacement", "There are {a} {one} and {b} {two} {things} in {box}. {name} draws two without putting the first back. What is the probability that both are {one}?"),
    problem("two draws with replacement", "From {box} with {a} {one} and {b} {two} {things}, one is drawn, put back, and one is drawn again. What is the probability of one {one} and one {two}?"),
    problem("at least one", "{name} takes two {things} at random from {box} with {a} {one} and {b} {two} ones. How likely is at least one {two} one?"),
    problem("how many to add", "{box_cap} holds {a} {one} and {b} {two} {things}. How many {one} ones must be added so that the probability of drawing {one} is at least 3/4?"),
    problem("expected number", "{name} draws one of the {things} from {box} with {a} {one} and {b} {two} ones, puts it back, and repeats this {n} times. How many {one} ones are expected?", n=range(20, 200, 10)),
)  # fmt: skip

# relation
RELATIONS = ("sister", "brother", "cousin", "daughter", "son", "neighbor", "niece", "nephew")

AGE_PROBLEMS = (
    problem("sum and multiple", "{name} is {k} times as old as a {relation}. Together they are {total} years old. How old is each?", k=(2, 3, 4), young=range(5, 20), total=lambda k, young, **_: young * (k + 1)),
    problem("sum and difference", "The ages of {name} and a {relation} add up to {total}, and they differ by {gap} years. Find both ages.", young=range(6, 20), gap=range(16, 30), total=lambda young, gap, **_: 2 * young + gap),
    problem("years from now", "{name} is {old} and has a {relation} aged {young}. In how many years will {name} be exactly twice as old?", young=range(4, 15), old=lambda young, **_: 2 * young + 9),
    problem("years ago", "{years} years ago {name} was {k} times as old as a {relation}, who is now {young}. How old is {name} now?", years=(2, 3, 4, 5), k=(2, 3, 5), young=range(8, 20)),
)  # fmt: skip

# what money is for
SAVINGS = lines("""
a bicycle
a trip to the coast
a laptop
a guitar
a camera
driving lessons
a new sofa
a telescope
concert tickets
a sewing machine
a kayak
a gaming console
""")

SAVING_PROBLEMS = (
    problem("weeks to save", "{name} wants to buy {goal} for ${price} and has ${start}. Saving ${weekly} a week, how many weeks does it take?", price=range(300, 900, 10), start=range(20, 120, 10), weekly=range(10, 40, 5)),
    problem("simple interest", "{name} puts ${price} aside for {goal} at {rate}% simple interest a year. How much is there after {years} years?", price=range(200, 2000, 100), rate=(2, 3, 4, 5), years=range(2, 7)),
    problem("compound interest", "To pay for {goal}, {name} invests ${price} at {rate}% interest, compounded yearly, for {years} years. What is the final amount?", price=range(500, 3000, 100), rate=(2, 3, 4, 5, 10), years=(2, 3)),
    problem("installments", "The price of {goal} is ${price}. {name} pays {percent}% at once and the rest in {n} equal monthly payments. How large is each payment?", price=range(300, 1500, 60), percent=(10, 20, 25, 40), n=(5, 6, 10, 12)),
    problem("two savers", "{name} and {friend} save for {goal} that costs ${price}. {name} saves ${a} a week and {friend} ${b} a week. After how many full weeks do they have enough?", price=range(240, 800, 20), a=range(10, 30), b=range(12, 35)),
    problem("share of income", "{name} earns ${income} a month, spends {percent}% on rent and ${food} on food, and saves half of what is left for {goal}. How much is saved each month?", income=range(1600, 4000, 100), percent=(25, 30, 35, 40), food=range(200, 500, 20)),
)  # fmt: skip

# what a sequence is about | grows how
GROWTH = lines("""
the rows of seats in a theater
the push-ups of a training plan
the pages read each day
the blocks in the layers of a pyramid
the savings put aside each month
the coins in a row of piles
the tiles in a growing pattern
the customers of a new shop each week
the laps swum in each session
the leaves of a young plant each week
the followers gained each day
the stairs climbed each morning
""")

GROWTH_PROBLEMS = (
    problem("next term", "Think of {what}: {a}, {t2}, {t3}, {t4}, ... What is the next number, and what is the rule?", "The numbers {a}, {t2}, {t3}, {t4} describe {what}. Continue the sequence by three numbers.", t2=lambda a, d, **_: a + d, t3=lambda a, d, **_: a + 2 * d, t4=lambda a, d, **_: a + 3 * d),
    problem("nth term", "Consider {what}. The first number is {a} and each one is {d} larger than the one before. What is the {n}th number?", n=range(11, 20)),
    problem("sum of terms", "For {what}, the first number is {a} and each next one is {d} more. What is the sum of the first {n} numbers?", n=range(6, 21)),
    problem("when is it reached", "Consider {what}: the first number is {a}, and it grows by {d} each time. Which number in the sequence is the first above {limit}?", limit=range(80, 200, 5)),
    problem("doubling", "Suppose that {what} start at {a} and double each time. How many steps does it take to pass {limit}?", limit=range(200, 2000, 50)),
)  # fmt: skip

# from | to | factor, both ways
CONVERSIONS = lines("""
kilometers | meters
meters | centimeters
hours | minutes
minutes | seconds
kilograms | grams
liters | milliliters
feet | inches
yards | feet
weeks | days
days | hours
pounds | ounces
gallons | quarts
miles | feet
square meters | square centimeters
cubic meters | liters
tons | kilograms
kilometers per hour | meters per second
centuries | years
gigabytes | megabytes
dollars | cents
""")

CONVERSION_PROBLEMS = (
    problem("convert", "Convert {n} {big} to {small}.", "How many {small} are {n} {big}? Explain the conversion factor.", "{name} has a value of {n} {big} but needs it in {small}. What is it?"),
    problem("convert back", "Convert {m} {small} to {big}.", "Express {m} {small} in {big}, and show how you divide.", m=range(120, 9000, 60)),
    problem("compare", "Which is more: {n} {big} or {m} {small}? By how much?", m=range(100, 9000, 50)),
)  # fmt: skip

# an activity for time problems
ACTIVITIES = lines("""
a film
a football match
a bread dough that must rise
a train ride
a school exam
a board meeting
a piano lesson
a hike
a flight
a theater play
a workshop
a shift at work
a dental appointment
a cooking class
""")

TIME_PROBLEMS = (
    problem("end time", "{what_cap} starts at {h}:{m:02d} and takes {d} minutes. When does it end?"),
    problem("duration", "{what_cap} begins at {h}:{m:02d} and ends at {end}:{m2:02d} on the same day. How long does it last?", end=lambda h, **_: h + 3, m2=(0, 5, 20, 40, 50)),
    problem("start time", "{what_cap} takes {d} minutes and must end at {end}:{m:02d}. What is the latest start?", end=lambda h, **_: h + 4),
    problem("repeated", "{what_cap} takes {d} minutes, {name} does it {n} times a month. How many hours and minutes is that in a month?", n=range(3, 12)),
)  # fmt: skip

# a mixture | its part
MIXTURES = lines("""
salt water | salt
orange drink | juice
an alcohol solution | alcohol
a metal alloy | copper
a nut mix | almonds
a cleaning solution | vinegar
a sugar syrup | sugar
a paint blend | blue paint
a fertilizer | nitrogen
a juice punch | cranberry juice
""")

MIXTURE_PROBLEMS = (
    problem("amount of a part", "{n} liters or kilograms of {what} are {percent}% {part}. How much {part} is in it?", n=range(2, 30), percent=(5, 12, 20, 35, 40)),
    problem("mixing two", "{name} mixes {n} kilograms of {what} with {low}% {part} and {m} kilograms with {high}% {part}. What is the percentage of {part} in the mixture?", n=range(1, 9), m=range(2, 9), low=(10, 15, 20), high=(30, 40, 50)),
    problem("dilution", "How much must be added to {n} kilograms of {what} with {high}% {part} to bring it down to {low}%, if the addition holds no {part}?", n=range(2, 20), low=(10, 15, 20), high=(30, 40, 60)),
    problem("by parts", "A recipe for {what} takes {a} parts of {part} and {b} parts of everything else. How much {part} is needed for {total} kilograms?", a=(1, 2, 3), b=(4, 5, 7), k=range(2, 9), total=lambda a, b, k, **_: (a + b) * k),
)  # fmt: skip

EXERCISES = (
    problem("one-step equation", "Solve for x: x + {a} = {b}.", "What is x if x - {a} = {b}?", a=range(3, 60), b=range(60, 150)),
    problem("two-step equation", "Solve for x: {k}x + {a} = {c}.", "Find x: {k}x + {a} = {c}. Check your answer.", k=range(2, 12), x=range(2, 15), a=range(1, 30), c=lambda k, x, a, **_: k * x + a),
    problem("x on both sides", "Solve {p}x + {a} = {k}x + {c}.", k=range(2, 6), p=range(7, 12), x=range(1, 12), a=range(1, 20), c=lambda k, p, x, a, **_: (p - k) * x + a),
    problem("equation with brackets", "Solve {k}(x - {a}) = {c}.", "Expand the brackets and solve: {k}(x - {a}) = {c}.", k=range(2, 10), x=range(5, 20), a=range(1, 5), c=lambda k, x, a, **_: k * (x - a)),
    problem("equation with a fraction", "Solve x/{k} + {a} = {c}.", k=range(2, 9), a=range(1, 20), c=range(21, 40)),
    problem("quadratic by factoring", "Solve x^2 - {s}x + {p} = 0.", "Find both roots of x^2 - {s}x + {p} by factoring.", u=range(1, 9), v=range(2, 10), s=lambda u, v, **_: u + v, p=lambda u, v, **_: u * v),
    problem("quadratic formula", "Use the quadratic formula to solve {a}x^2 + {b}x - {c} = 0.", a=(2, 3, 4), b=range(2, 12), c=range(1, 12)),
    problem("completing the square", "Write x^2 + {b}x + {c} in the form (x + p)^2 + q.", b=range(2, 20, 2), c=range(1, 30)),
    problem("system of two equations", "Solve the system: x + y = {s}, x - y = {d}.", "Two numbers add up to {s} and differ by {d}. Find them.", d=range(2, 30, 2), s=range(32, 90, 2)),
    problem("system by elimination", "Solve 2x + 3y = {c} and x - y = {d} for x and y.", x=range(3, 12), y=range(1, 8), c=lambda x, y, **_: 2 * x + 3 * y, d=lambda x, y, **_: x - y),
    problem("inequality", "Solve the inequality {k}x - {a} > {b}, and describe the solution on a number line.", k=range(2, 9), a=range(1, 20), b=range(5, 60)),
    problem("absolute value", "Solve |x - {a}| = {b}.", a=range(1, 20), b=range(1, 20)),
    problem("expand", "Expand and simplify (x + {a})(x - {b}).", "Multiply out ({k}x + {a})(x + {b}).", a=range(1, 12), b=range(1, 12), k=range(2, 6)),
    problem("factor a polynomial", "Factor x^2 + {s}x + {p}.", u=range(1, 10), v=range(1, 10), s=lambda u, v, **_: u + v, p=lambda u, v, **_: u * v),
    problem("difference of squares", "Factor {k2}x^2 - {a2}.", k=range(2, 8), a=range(2, 12), k2=lambda k, **_: k * k, a2=lambda a, **_: a * a),
    problem("simplify a fraction", "Simplify the fraction {a}/{b}.", k=range(3, 15), p=range(2, 9), q=range(10, 20), a=lambda k, p, **_: k * p, b=lambda k, q, **_: k * q),
    problem("add fractions", "What is {a}/{b} + {c}/{d}?", "Add {a}/{b} and {c}/{d}, and give the result in lowest terms.", a=range(1, 5), b=range(5, 10), c=range(1, 4), d=range(4, 13)),
    problem("multiply fractions", "Compute {a}/{b} times {c}/{d}.", a=range(1, 9), b=range(3, 12), c=range(1, 9), d=range(3, 12)),
    problem("divide fractions", "Divide {a}/{b} by {c}/{d} and simplify.", a=range(1, 9), b=range(3, 12), c=range(1, 9), d=range(3, 12)),
    problem("long multiplication", "Calculate {a} x {b}, showing the steps.", "What is {a} times {b}? Break it into easy parts.", a=range(13, 99), b=range(12, 99)),
    problem("long division", "Divide {a} by {b}. Give the quotient and the remainder.", a=range(300, 2000), b=range(7, 30)),
    problem("order of operations", "Evaluate {a} + {b} x ({c} - {d}).", "What is {a} + {b} x ({c} - {d})? Explain the order of operations.", a=range(2, 50), b=range(2, 12), c=range(10, 20), d=range(1, 10)),
    problem("percentage of a number", "What is {p}% of {n}?", p=range(5, 96, 5), n=range(40, 900, 20)),
    problem("percentage change", "A value goes from {a} to {b}. What is the percentage change?", a=range(40, 200, 10), b=range(50, 300, 10)),
    problem("reverse percentage", "After a {p}% discount a price is ${c}. What was the original price?", p=(10, 20, 25, 40), k=range(2, 20), c=lambda p, k, **_: (100 - p) * k // 5),
    problem("decimal arithmetic", "Compute {a} - {b}.", "What is {a} + {b}?", x=range(101, 999), y=range(101, 999), a=lambda x, **_: x / 10, b=lambda y, **_: y / 100),
    problem("powers", "Simplify {a}^{m} x {a}^{n} and give the value.", a=(2, 3, 5), m=range(2, 5), n=range(2, 4)),
    problem("square roots", "Simplify the square root of {n}.", k=range(2, 9), r=(2, 3, 5, 6, 7), n=lambda k, r, **_: k * k * r),
    problem("logarithm", "What is the logarithm of {n} to the base {b}?", b=(2, 3, 5, 10), m=range(2, 6), n=lambda b, m, **_: b**m),
    problem("greatest common divisor", "Find the greatest common divisor of {a} and {b}.", k=range(3, 13), p=(4, 5, 7, 9), q=(8, 11, 13), a=lambda k, p, **_: k * p, b=lambda k, q, **_: k * q),
    problem("least common multiple", "What is the least common multiple of {a} and {b}?", a=range(4, 20), b=range(6, 30)),
    problem("prime factorization", "Write {n} as a product of primes.", n=range(60, 600, 6)),
    problem("prime test", "Is {n} a prime number? Explain how you check.", n=range(91, 300, 2)),
    problem("divisors", "List all divisors of {n}. How many are there?", n=range(24, 200, 4)),
    problem("consecutive numbers", "The sum of three consecutive integers is {s}. What are they?", k=range(8, 90), s=lambda k, **_: 3 * k),
    problem("consecutive even numbers", "Two consecutive even numbers have the product {p}. Find them.", k=range(2, 15), p=lambda k, **_: 4 * k * (k + 1)),
    problem("digits", "A two-digit number has the digit sum {s}, and its tens digit is {d} more than its units digit. What is the number?", u=range(1, 5), d=range(1, 5), s=lambda u, d, **_: 2 * u + d),
    problem("rounding", "Round {a} to the nearest ten, hundred and thousand.", a=range(1234, 9876)),
    problem("scientific notation", "Write {a} in scientific notation.", k=range(12, 99), e=range(3, 8), a=lambda k, e, **_: k * 10**e),
    problem("temperature", "Convert {n} degrees Celsius to degrees Fahrenheit.", "It is {f} degrees Fahrenheit outside. What is that in degrees Celsius?", n=range(-10, 45), f=range(23, 110, 3)),
    problem("binary number", "Convert {n} to binary.", "Write the decimal number {n} as a binary number and explain the method.", n=range(17, 250)),
    problem("geometric sequence", "The sequence {a}, {b}, {c}, ... is geometric. What is its 6th term?", a=range(1, 8), r=(2, 3, 4), b=lambda a, r, **_: a * r, c=lambda a, r, **_: a * r * r),
    problem("sum of first integers", "What is the sum of all integers from 1 to {n}?", n=range(20, 300)),
    problem("arithmetic series", "Find the sum of the first {n} multiples of {k}.", n=range(8, 40), k=range(3, 15)),
    problem("area of a triangle", "A triangle has a base of {b} cm and a height of {h} cm. What is its area?", b=range(4, 30), h=range(3, 20)),
    problem("angles of a triangle", "Two angles of a triangle are {a} and {b} degrees. What is the third, and is the triangle right, acute or obtuse?", a=range(20, 80), b=range(25, 90)),
    problem("hypotenuse", "The legs of a right triangle are {a} cm and {b} cm. How long is the hypotenuse?", k=range(1, 8), t=((3, 4), (5, 12), (8, 15)), a=lambda k, t, **_: t[0] * k, b=lambda k, t, **_: t[1] * k),
    problem("area of a circle", "A circle has a radius of {r} cm. Find its area and circumference.", "What is the area of a circle with a diameter of {d} cm? Use 3.14 for pi.", r=range(2, 25), d=range(4, 50, 2)),
    problem("area of a trapezoid", "A trapezoid has parallel sides of {a} cm and {b} cm and a height of {h} cm. What is its area?", a=range(3, 15), b=range(8, 25), h=range(2, 14, 2)),
    problem("volume of a box", "A box is {a} cm long, {b} cm wide and {c} cm high. What are its volume and its surface area?", a=range(3, 30), b=range(3, 20), c=range(2, 15)),
    problem("volume of a cylinder", "A cylinder has a radius of {r} cm and a height of {h} cm. What is its volume?", r=range(2, 12), h=range(3, 25)),
    problem("volume of a sphere", "What is the volume of a sphere with radius {r} cm?", r=range(2, 15)),
    problem("volume of a cone", "Find the volume of a cone with radius {r} cm and height {h} cm.", r=range(2, 12), h=range(3, 25)),
    problem("polygon angles", "What is the sum of the interior angles of a polygon with {n} sides, and how large is each if it is regular?", n=range(5, 21)),
    problem("distance of points", "What is the distance between the points ({a}, {b}) and ({c}, {d})?", a=range(0, 6), b=range(0, 6), c=range(6, 14), d=range(6, 14)),
    problem("midpoint", "Find the midpoint of ({a}, {b}) and ({c}, {d}).", a=range(0, 9), b=range(0, 9), c=range(6, 20), d=range(6, 20)),
    problem("line through points", "Find the equation of the line through ({a}, {b}) and ({c}, {d}).", a=range(0, 4), b=range(0, 9), c=range(4, 9), d=range(1, 15)),
    problem("slope and intercept", "What are the slope and the intercepts of the line y = {m}x - {b}?", m=range(2, 9), b=range(2, 20)),
    problem("function value", "Let f(x) = {a}x^2 - {b}x + {c}. Compute f({x}).", a=range(2, 6), b=range(2, 9), c=range(1, 12), x=range(2, 7)),
    problem("composition of functions", "If f(x) = {a}x + {b} and g(x) = x^2, what is f(g({x}))?", a=range(2, 9), b=range(1, 12), x=range(2, 6)),
    problem("derivative", "Differentiate f(x) = {a}x^{n} + {b}x.", "Find the derivative of {a}x^{n} + {b}x and its value at x = 1.", a=range(2, 9), n=range(2, 6), b=range(2, 12)),
    problem("integral", "Compute the integral of {a}x^2 + {b} from 0 to {c}.", a=(3, 6, 9), b=range(1, 12), c=range(1, 5)),
    problem("two dice", "Two dice are rolled. What is the probability that the sum is {n}?", n=range(2, 13)),
    problem("coin tosses", "A fair coin is tossed {n} times. What is the probability of exactly {k} heads?", n=range(3, 8), k=(1, 2, 3)),
    problem("arrangements", "In how many ways can {n} books be arranged on a shelf?", "In how many orders can {n} people stand in a line?", n=range(3, 10)),
    problem("committees", "How many committees of {k} can be formed from {n} people?", n=range(6, 15), k=(2, 3, 4)),
    problem("handshakes", "{n} people meet, and each shakes hands with every other once. How many handshakes are there?", n=range(5, 30)),
    problem("outfits", "{name} has {a} shirts, {b} pairs of trousers and {c} hats. How many outfits are possible?", a=range(2, 9), b=range(2, 7), c=range(2, 5)),
    problem("passwords", "How many codes with {n} digits are there if no digit may repeat?", n=(2, 3, 4, 5)),
    problem("map scale", "On a map with scale 1:{s}000, two towns are {d} cm apart. How far is that in kilometers?", s=(20, 25, 50, 100), d=range(3, 20)),
    problem("proportion", "If {a} machines make {b} parts in an hour, how many parts do {c} machines make?", a=range(2, 7), k=range(4, 20), b=lambda a, k, **_: a * k, c=range(7, 15)),
    problem("clock angle", "What is the angle between the hands of a clock at {h}:{m:02d}?", h=range(1, 13), m=(0, 15, 20, 30, 40)),
    problem("recipe scaling", "A recipe for {a} people needs {g} grams of flour. How much is needed for {b} people?", a=(2, 4, 5), k=range(40, 120, 10), g=lambda a, k, **_: a * k, b=range(6, 13)),
    problem("fuel use", "A car uses {a} liters of fuel per 100 km. How much does a trip of {d} km cost at ${p} per liter?", a=range(4, 11), d=range(150, 900, 50), p=("1.50", "1.60", "1.80", "2.00")),
    problem("coins", "{name} has {n} coins, all nickels and dimes, worth ${v:.2f}. How many of each are there?", d=range(3, 15), k=range(3, 15), n=lambda d, k, **_: d + k, v=lambda d, k, **_: (10 * d + 5 * k) / 100),
    problem("chickens and cows", "A farm has chickens and cows, {n} heads and {legs} legs together. How many of each are there?", a=range(4, 20), b=range(3, 15), n=lambda a, b, **_: a + b, legs=lambda a, b, **_: 2 * a + 4 * b),
    problem("population growth", "A town of {n} people grows by {p}% a year. How many people live there after {y} years?", n=range(2000, 20000, 1000), p=(2, 5, 10), y=(2, 3)),
    problem("bacteria", "A culture of {n} bacteria doubles every {h} hours. How many are there after {t} hours?", n=range(50, 500, 50), h=(2, 3, 4), k=range(3, 7), t=lambda h, k, **_: h * k),
    problem("half-life", "A sample of {n} grams has a half-life of {h} years. How much is left after {t} years?", n=(80, 160, 320, 64), h=range(5, 30), k=(2, 3, 4), t=lambda h, k, **_: h * k),
)  # fmt: skip

CONCEPTS = lines("""
prime numbers
negative numbers
fractions
percentages
ratios
the order of operations
the distributive law
slope
the Pythagorean theorem
pi
variables
functions
quadratic equations
logarithms
exponents
derivatives
integrals
limits
vectors
matrices
mean, median and mode
standard deviation
probability
permutations and combinations
sets
mathematical induction
the Fibonacci sequence
complex numbers
sine and cosine
similar triangles
place value
irrational numbers
absolute value
geometric series
compound interest
""")
CONCEPT_ASKS = (
    "Explain {concept} to a {age}-year-old with an example.",
    "What is the idea behind {concept}? Use numbers to illustrate it.",
    "Give me three practice problems about {concept}, with solutions.",
    "I always confuse things when it comes to {concept}. Can you explain the basics step by step?",
    "Write a short lesson on {concept} with two worked examples.",
    "Why do we need {concept} in real life? Give two examples with numbers.",
)


def tasks() -> Iterator[tuple[str, Writer]]:
    """Every (situation, question kind) pair with its writer."""
    for kind, situation, asked, numbers in situations():
        for each in asked:
            yield f"{kind}, {situation}: {each.kind}", partial(write, each, numbers)
    for each in EXERCISES:
        yield f"exercise: {each.kind}", partial(write, each, {})
    for concept in CONCEPTS:
        yield f"concept: {concept}", phrased(CONCEPT_ASKS, concept=concept, age=(9, 10, 12, 14, 16))


def situations() -> Iterator[tuple[str, str, tuple[Problem, ...], dict[str, object]]]:
    """(kind, situation, problems, slots) for every situation of the word lists."""
    for place, one, many, prices in rows(GOODS):
        low, high = map(int, prices.split())
        slots = {"one_a": an(one), "many": many, "price": range(low, high + 1)}
        yield "goods", f"{many} at {place}", GOODS_PROBLEMS, {"place": place, **slots}
    for place, members in rows(GROUPS):
        yield "groups", place, GROUP_PROBLEMS, {"place": place, "members": members}
    for who, speeds, unit in rows(TRAVEL):
        low, high = map(int, speeds.split())
        slots = {"who": who, "speed": range(low, high + 1, 2), "unit": unit}
        yield "travel", who, TRAVEL_PROBLEMS, slots
    for who, does, units in rows(WORK):
        slots = {"who": who, "does": does, "units": units, "rate": range(10, 60, 5)}
        yield "work", f"{who} {does} {units}", WORK_PROBLEMS, slots
    for place, unit in rows(RECTANGLES):
        one = {"feet": "foot", "inches": "inch"}.get(unit, unit.removesuffix("s"))
        slots = {"place": place, "unit": unit, "one_unit": one}
        slots |= {"wide": range(4, 20), "long": range(20, 45)}
        yield "rectangle", place, RECTANGLE_PROBLEMS, slots
    for what in DATA:
        yield "data", what, DATA_PROBLEMS, {"what": what}
    for box, things, kinds in rows(DRAWS):
        one, two = kinds.split()
        slots = {"box": box, "things": things, "one": one, "two": two}
        numbers = {"a": range(3, 13), "b": range(4, 15)}
        yield "draws", f"{things} in {box}", DRAW_PROBLEMS, {**slots, **numbers}
    for relation in RELATIONS:
        yield "ages", relation, AGE_PROBLEMS, {"relation": relation}
    for goal in SAVINGS:
        yield "saving", goal, SAVING_PROBLEMS, {"goal": goal}
    for what in GROWTH:
        slots = {"what": what, "a": range(2, 15), "d": range(2, 10)}
        yield "growth", what, GROWTH_PROBLEMS, slots
    for big, small in rows(CONVERSIONS):
        slots = {"big": big, "small": small, "n": range(2, 60)}
        yield "conversion", f"{big} and {small}", CONVERSION_PROBLEMS, slots
    for what in ACTIVITIES:
        slots = {"what": what, "h": range(7, 19), "m": range(0, 60, 5), "d": range(35, 200, 5)}
        yield "time", what, TIME_PROBLEMS, slots
    for what, part in rows(MIXTURES):
        yield "mixture", what, MIXTURE_PROBLEMS, {"what": what, "part": part}


def write(asked: Problem, slots: dict[str, object], rng: random.Random) -> str:
    """One prompt: numbers drawn, a phrasing picked, at times with an opening and a closing."""
    name, friend = rng.sample(NAMES, 2)
    values = ", ".join(str(rng.randint(12, 48)) for _ in range(rng.randint(5, 8)))
    given = {"name": name, "friend": friend, "values": values, **slots}
    for slot in ("place", "who", "what", "box", "one_a"):
        if slot in given:
            given[f"{slot}_cap"] = capital(str(given[slot]))
    text = fill(rng, rng.choice(asked.texts), **given, **asked.numbers)
    return rng.choice(OPENINGS) + text + rng.choice(CLOSINGS)
