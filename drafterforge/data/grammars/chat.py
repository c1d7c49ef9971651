"""Chat prompts: advice, explanations, letters, plans, comparisons, ideas, small talk, roles, rewriting."""

# Templates and word lists keep one entry a line.

from __future__ import annotations

from collections.abc import Iterator

from drafterforge.data.grammars.base import Writer, crossed, framed, lines, phrased

# Things to know about.
SUBJECTS = lines("""
photosynthesis
the water cycle
black holes
inflation
vaccines
the French Revolution
the Roman Empire
plate tectonics
renewable energy
solar panels
electric cars
the stock market
credit scores
mortgages
taxes
supply and demand
blockchain
artificial intelligence
machine learning
cloud computing
encryption
the internet
search engines
computer viruses
how airplanes fly
rainbows
tides
earthquakes
volcanoes
the greenhouse effect
recycling
coral reefs
bees and pollination
bird migration
dinosaurs
evolution
DNA
the immune system
sleep cycles
the heart
digestion
antibiotics
allergies
stress
meditation
habits
memory
dreams
emotions
optical illusions
impressionist painting
jazz
opera
haiku
Shakespeare's plays
Greek mythology
the Silk Road
the Renaissance
the Industrial Revolution
the Cold War
democracy
the United Nations
human rights
elections
insurance
retirement savings
compound interest
startups
marketing
public speaking
negotiation
leadership
time zones
leap years
the moon landing
the solar system
gravity
electricity
magnets
batteries
microwaves
sound waves
fermentation
sourdough bread
coffee roasting
green tea
chocolate
cheese making
chess openings
the rules of soccer
the Olympic Games
yoga
marathon training
first aid
composting
crop rotation
urban gardening
bridges
skyscrapers
3D printing
GPS
""")

SUBJECT_KINDS = {
    "explain": (
        "Explain {topic} in simple terms.",
        "Can you explain {topic} to a {age}-year-old?",
        "I know nothing about {topic}. Where should I start? Give me a short overview.",
        "Tell me about {topic} in about {words} words.",
        "Hi! Could you give me a clear introduction to {topic}, with one everyday example?",
    ),
    "facts": (
        "Give me {n} interesting facts about {topic}.",
        "What are {n} things most people do not know about {topic}?",
        "List {n} surprising facts on the subject of {topic}, one sentence each.",
    ),
    "myths": (
        "What are common misconceptions about {topic}, and what is true instead?",
        "Name {n} myths about {topic} and correct each of them.",
        "People often get {topic} wrong. What do they misunderstand?",
    ),
    "quiz": (
        "Create a quiz with {n} questions about {topic}, with the answers at the end.",
        "Test my knowledge of {topic}: write {n} multiple choice questions and mark the right answers.",
    ),
    "importance": (
        "What is the role of {topic} in everyday life?",
        "Write a short paragraph on why it is worth learning about {topic}.",
        "How has our view of {topic} changed over time?",
    ),
    "lesson": (
        "Outline a {minutes}-minute lesson on {topic} for a class of teenagers.",
        "I have to give a short talk about {topic}. Suggest a structure with key points.",
        "Write the opening paragraph of a school essay on {topic}.",
    ),
    "analogy": (
        "Find a good analogy for {topic} and explain where it breaks down.",
        "Compare {topic} to something from daily life, so that a beginner gets the main idea.",
    ),
}

# Things to do.
ACTIVITIES = lines("""
learning Spanish
learning to play the piano
running a first 5k
losing weight in a healthy way
eating less sugar
cooking for one person
baking bread at home
starting a vegetable garden
keeping houseplants alive
adopting a dog
training a puppy
raising chickens
moving to a new city
buying a first car
renting an apartment
decorating a small bedroom
organizing a closet
cleaning the kitchen quickly
saving money on groceries
making a monthly budget
paying off debt
starting to invest
finding a new job
preparing for a job interview
asking for a raise
working from home
managing a small team
giving feedback to a colleague
running better meetings
writing a resume
starting a blog
starting a podcast
taking better photos
learning to draw
writing a short story
reading more books
getting up early
sleeping better
reducing screen time
dealing with stress
building self-confidence
making new friends
keeping in touch with old friends
planning a wedding
hosting a dinner party
throwing a birthday party for a child
traveling alone
traveling with small children
packing light
camping for the first time
hiking in the mountains
learning to swim as an adult
stretching at a desk
recovering from a bad day
studying for exams
taking notes in class
learning to code
speaking in front of a crowd
writing thank-you notes
selling things online
opening a small cafe
volunteering in the community
living with roommates
caring for an aging parent
preparing for a first baby
teaching a child to read
fixing a bicycle
painting a room
learning to knit
brewing better coffee
""")

ACTIVITY_KINDS = {
    "tips": (
        "Give me {n} practical tips for {topic}.",
        "Do you have any advice on {topic}?",
        "What are the most important things to keep in mind when {topic}?",
        "I am thinking about {topic}. What should I know before I start?",
    ),
    "plan": (
        "Make a plan of {weeks} weeks for {topic}.",
        "Help me with {topic}. I have {hours} hours a week. What would a realistic schedule look like?",
        "Write a step-by-step plan for {topic}, starting from zero.",
    ),
    "mistakes": (
        "What are the most common mistakes people make when {topic}?",
        "I find {topic} harder than I expected. What am I probably doing wrong?",
        "List {n} beginner mistakes in {topic} and how to avoid each one.",
    ),
    "checklist": (
        "Write a checklist for {topic}.",
        "Which tools, supplies or documents do I need for {topic}? Give me a list.",
    ),
    "questions": (
        "What questions should I ask myself before {topic}?",
        "Interview me about {topic}: ask {n} questions that help you give me better advice.",
        "What do people with experience in {topic} know that others do not?",
    ),
    "motivation": (
        "I keep putting off {topic}. Can you motivate me?",
        "Write a short pep talk for someone who is nervous about {topic}.",
        "How do I stay motivated when {topic} feels slow?",
    ),
    "social post": (
        "Write a cheerful social media post about {topic}.",
        "Write a short blog introduction on {topic}, in a friendly tone.",
        "Suggest {n} catchy titles for an article about {topic}.",
    ),
}

# first | second
PAIRS = lines("""
tea | coffee
cats | dogs
city life | country life
renting | buying a home
trains | planes
books | e-readers
running | swimming
gas stoves | induction stoves
remote work | office work
a laptop | a desktop computer
Android | iOS
public transport | driving
a freelance career | a permanent job
a small company | a large company
online classes | classroom teaching
paper notes | digital notes
a vegetarian diet | a vegan diet
butter | olive oil
summer vacations | winter vacations
camping | hotels
yoga | weight training
credit cards | debit cards
stocks | bonds
electric cars | hybrid cars
white rice | brown rice
a dishwasher | washing by hand
morning workouts | evening workouts
hardwood floors | carpet
guitar | piano
painting | photography
movies | theater
board games | video games
fresh vegetables | frozen vegetables
carrying cash | paying by phone
living alone | living with roommates
a big wedding | a small wedding
learning from books | learning from videos
meditation | journaling
a rescue dog | a puppy from a breeder
tap water | bottled water
e-mail | phone calls
planning ahead | being spontaneous
wool | cotton
podcasts | audiobooks
a savings account | investing in funds
""")

PAIR_KINDS = {
    "compare": (
        "Compare {first} and {second}. What are the main differences?",
        "Make a short table that compares {first} with {second}.",
        "What are the advantages of {first} over {second}, and the other way round?",
    ),
    "choose": (
        "Should I choose {first} or {second}? Tell me what it depends on and give a recommendation.",
        "I can't decide between {first} and {second}. Help me think it through.",
    ),
    "debate": (
        "Write a short dialogue between two friends, one for {first} and one for {second}.",
        "Argue for {first} against {second} in one paragraph, then argue the opposite.",
    ),
}

# Written to whom and why.
LETTERS = lines("""
my boss, asking for a day off next Friday
my boss, asking for permission to work from home twice a week
my team, announcing a new weekly meeting
a colleague, thanking them for help with a report
a customer, apologizing for a late delivery
a customer, explaining a price increase
a customer, asking for feedback on a product
a supplier, asking for a quote
a supplier, complaining about damaged goods
my landlord, reporting a broken heater
my landlord, asking to extend the lease
a neighbor, asking them to turn down the music at night
a neighbor, thanking them for watering the plants
a teacher, explaining a child's absence
a professor, asking for a recommendation letter
a professor, asking for an extension of a deadline
a recruiter, declining a job offer politely
a recruiter, following up after an interview
a hiring manager, applying for a job as a shop assistant
a hiring manager, applying for an internship in marketing
a hotel, asking about a late check-in
a hotel, complaining about a noisy room
an airline, requesting a refund for a cancelled flight
a bank, reporting a lost card
an insurance company, describing water damage
a gym, cancelling a membership
a phone company, disputing a bill
a restaurant, booking a table for twelve people
a friend, inviting them to a birthday dinner
a friend, apologizing for forgetting their birthday
a friend who just moved abroad
a friend who lost a job
my grandmother, telling her about my new apartment
my sister, congratulating her on her graduation
my cousin, congratulating them on a new baby
a local newspaper, about the need for safer bike lanes
the city council, asking for more street lights
a charity, offering to volunteer
a club, proposing a summer event
all employees, reminding them to update their passwords
all employees, about a planned power outage
new members, welcoming them to a book club
parents, about a school trip to the zoo
a mentor, thanking them for their guidance
a former colleague, asking for coffee and career advice
an author whose book I loved
a doctor's office, moving an appointment
a moving company, asking for a price estimate
a client, summarizing the results of a meeting
a client, introducing a new contact person
""")

LETTER_ASKS = (
    "Write an e-mail to {topic}.",
    "Help me write a {tone} message to {topic}. Keep it under {words} words.",
    "Draft a {tone} letter to {topic}.",
    "I need to write to {topic}. What should I say? Please write it for me.",
    "Compose a {tone} e-mail to {topic}, with a subject line.",
    "Can you write two versions of an e-mail to {topic}: one formal and one casual?",
)

# Situations that ask for advice, in the words of the user.
TROUBLES = lines("""
My roommate never washes the dishes.
My best friend has not answered my messages for two weeks.
I have two job offers and cannot choose.
My boss takes credit for my work.
I feel tired every afternoon at work.
My neighbor's dog barks all night.
I am nervous about meeting my partner's parents.
My teenage son spends all day on his phone.
I forgot a colleague's name and it is too late to ask.
My flight was cancelled and I am stuck at the airport.
I want to quit my job but I am afraid of the risk.
I said something rude to a friend and regret it.
My houseplants keep dying.
I spend too much money on takeout food.
I moved to a new town and know nobody.
My coworker talks too much during meetings.
I failed an important exam.
I cannot fall asleep before two in the morning.
My daughter is afraid of the dark.
I have to give a toast at a wedding next week.
I get distracted every few minutes when I study.
My laptop is slow and I cannot afford a new one.
I lent money to a friend who does not pay it back.
I want to learn to cook but I burn everything.
My partner and I argue about housework.
I feel left out in my group of friends.
My team misses every deadline.
I am bored with my workouts.
My child does not want to go to school.
I have too many hobbies and finish nothing.
My father refuses to see a doctor.
I have a long commute and feel it is wasted time.
My cat scratches the sofa.
I was not invited to a friend's party.
I am shy and find small talk hard.
My inbox has three thousand unread messages.
I have to share a room with someone who snores.
I regret my choice of college major.
I get angry quickly in traffic.
My apartment is too small for all my things.
I am going to be a manager for the first time.
My parents do not like my career choice.
I procrastinate until the night before every deadline.
My bread never rises.
I have been invited to a dinner and I am a picky eater.
I feel homesick after moving abroad.
My phone battery dies before noon.
I promised too much to too many people.
I have one free weekend and no plans.
My bicycle was stolen.
""")

TROUBLE_ASKS = (
    "{topic} What should I do?",
    "{topic} Do you have any advice?",
    "I need some help. {topic} Give me {n} ideas that I can try this week.",
    "{topic} How would you handle this?",
    "{topic} Be honest with me: what is the first step?",
    "{topic} What could I say, word for word?",
)

# Things to have ideas for.
IDEAS = lines("""
names for a small bakery
names for a golden retriever puppy
names for a science fiction novel
slogans for a bicycle shop
slogans for a recycling campaign
birthday gifts for a father who loves fishing
birthday gifts for a ten-year-old
gifts for a colleague who is leaving
cheap date nights
rainy day activities for children
team building activities for a small office
weekend trips without a car
quick dinners with chickpeas
healthy snacks for school
meals from leftover rice
vegetarian barbecue dishes
breakfasts without eggs
themes for a costume party
topics for a travel blog
topics for a school science fair
topics for a five-minute speech
questions for a first date
icebreakers for a workshop
writing prompts about the sea
plots for a detective story
characters for a fantasy game
story ideas about a lost key
uses for old jars
ways to decorate a balcony
ways to save water at home
ways to use less plastic
ways to welcome a new neighbor
ways to celebrate a small success
small habits for a calmer day
side jobs for students
fundraising events for a school
features for a to-do app
features for a fitness app
ways to get more customers for a flower shop
social media posts for a coffee shop
exercises without equipment
games for a long car ride
family traditions for the new year
New Year's resolutions that last
hobbies that cost almost nothing
songs to learn first on the ukulele
museum activities for children
retirement hobbies
conversation topics for a long dinner
creative date ideas at home
""")

IDEA_ASKS = (
    "Give me {n} {topic}.",
    "Brainstorm {n} {topic}.",
    "I need {topic}. What can you suggest?",
    "Can you come up with {n} original {topic}? Add a short reason for each.",
    "List {topic}, from the most obvious to the most unusual.",
    "Help me brainstorm: {topic}. Then pick your favorite.",
)

ROLES = lines("""
a travel guide in Rome
a travel guide in Tokyo
a friendly librarian
a strict but fair piano teacher
a job interviewer at a bank
a job interviewer at a software company
a pirate captain
a medieval knight
a detective in the 1920s
an astronaut on Mars
a grandmother who loves to cook
a fitness coach
a wine waiter
a museum guide
a weather reporter
a sports commentator
a science teacher
a history professor
a chess coach
a career counselor
a gardener
a hotel receptionist
a shop assistant in a shoe store
a tour guide in the rain forest
a wise old tree
a talking cat
a robot that wants to understand humor
a time traveler from the year 2300
a lighthouse keeper
a chef at a small restaurant
a pilot
a radio host at midnight
a bookstore owner
a debate partner
a patient language tutor
a nutritionist
a mayor of a small town
a beekeeper
a mountain guide
a fairy tale narrator
""")

ROLE_ASKS = (
    "Pretend that you are {topic}. Greet me and start the conversation.",
    "Act as {topic}. What would you tell someone who meets you for the first time?",
    "You are {topic}. Describe a typical day in your life.",
    "Let's role play: you are {topic} and I am a curious child. Tell me what you do.",
    "Answer as {topic}: what is the most important lesson you have learned?",
    "Write a short monologue by {topic}.",
)

STORIES = lines("""
a lost umbrella
a dragon who is afraid of fire
the last tree in a city
two rivals who open shops on the same street
a letter that arrives fifty years late
a robot that learns to paint
a village without clocks
a fox and a lighthouse
a girl who talks to clouds
a train that never stops
an old bookshop at the edge of town
a snowman in spring
the first day at a new school
a chef who loses the sense of taste
a map with a missing corner
a musician in an empty hall
a night at the museum
a storm at sea
a forgotten birthday
a bridge between two islands
a cat that inherits a house
a magic pencil
autumn leaves
a quiet morning
the ocean at night
friendship
a grandmother's garden
the end of summer
a long road home
rain on a tin roof
a city waking up
courage
an astronaut's loneliness
a wooden boat
the first snow
a secret recipe
a broken clock
a shared meal
an old photograph
a stray dog
""")

STORY_KINDS = {
    "story": (
        "Write a short story about {topic}.",
        "Tell me a bedtime story about {topic}.",
        "Write the first paragraph of a story about {topic}.",
        "Write a story of about {words} words about {topic}, with a surprising ending.",
    ),
    "poem": (
        "Write a poem about {topic}.",
        "Write a haiku about {topic}, then explain it.",
        "Compose a rhyming poem of {n} lines about {topic}.",
    ),
    "song": (
        "Write the chorus of a song about {topic}.",
        "Write song lyrics about {topic}, with two verses and a chorus.",
    ),
}

SENTENCES = lines("""
i cant come to the meeting tomorow because im sick
Your product broke after two days and I want my money back now.
The report was written by the team and it was read by the manager and it was liked.
We need to talk about the thing we said we would talk about.
Sorry for the late reply, I was super busy with stuff.
It is what it is, and we have to do what we have to do.
The results of the survey show that a majority of people are of the opinion that parking is too expensive.
Me and him goes to the gym every days.
Please be advised that your request has been received and is being processed.
The movie was good and the actors were good and the music was good.
Due to the fact that it rained, the event did not take place.
I think that maybe we could possibly try a different plan.
Hey, send me the files asap!!!
The new policy will be implemented by us in the near future.
She dont like when peoples are loud in library.
Our company is a leading provider of innovative solutions.
This food is bad. The waiter was bad. I will not come back.
I would like to express my sincere gratitude for your assistance in this matter.
The meeting that was planned for Monday has been moved to Tuesday because of the holiday.
You did this wrong again and it is annoying.
In my opinion I personally believe that dogs are better pets.
He has been working here since five years and knows everythings.
We sell shoes. They are comfortable. They are cheap. Buy them.
No, we do not give refunds.
The weather was nice so we went to the beach and then we ate ice cream and then we went home.
""")

STYLES = {
    "correct": "Correct the grammar and spelling, and list what you changed",
    "formal": "Rewrite this in a formal and polite tone",
    "casual": "Make this sound casual and friendly",
    "short": "Make this shorter and clearer",
    "vivid": "Rewrite this so that it is more vivid and engaging",
    "simple": "Rewrite this in simple English for language learners",
}
STYLE_ASKS = (
    '{style}: "{text}"',
    "{style}.\n\n{text}",
    "Please edit the text below. {style}.\n\nText: {text}",
    '{style}. Offer two versions.\n\n"{text}"',
)

SMALL_TALK = lines("""
How are you today?
What is your favorite season, and why?
Tell me a joke about computers.
Tell me a joke that a child would like.
Tell me a riddle and then the answer.
Good morning! What should I do with my day?
I just had the best pizza of my life!
I am bored. Entertain me for a minute.
What would you do with a million dollars?
What makes a good friend?
I got the job! I start on Monday.
It is raining again and I am in a bad mood.
Do you prefer mountains or the sea?
What is the meaning of life, in one paragraph?
Can you recommend a hobby for a quiet person?
What should I cook tonight with eggs, rice and spinach?
What is a good book for someone who liked The Hobbit?
Which movie should I watch with my family tonight?
Is it ever okay to lie?
What is something new I could learn in ten minutes?
Give me a compliment, please.
Say something nice about Mondays.
If you could travel anywhere, where would you go?
What superpower would be the most useful in an office?
I can't sleep. Talk to me about something calm.
What is the best way to start a conversation with a stranger?
Today is my birthday!
My team lost the final and I am sad.
Thank you for your help yesterday.
What questions should I ask you?
What can you help me with?
Do aliens exist? What do you think?
What is the best invention of all time?
Why do people like scary movies?
Would you rather be able to fly or be invisible?
Teach me a word that I probably do not know.
Teach me how to say thank you in five languages.
Let's play twenty questions. You start.
Let's play a word game. Explain the rules first.
What is a polite way to say no?
How do I say goodbye at a party without being rude?
I finally finished my thesis!
I adopted a kitten. Any name ideas?
What does it mean when someone says "break a leg"?
What does the saying "the early bird catches the worm" mean?
Give me a quote about patience and explain it.
Give me a tongue twister.
What is a fun fact about octopuses?
Why is the sky blue?
Why do cats purr?
""")
GREETINGS = ("", "Hi!", "Hello there.", "Hey!", "Good evening.", "Hi, me again.")
ENDINGS = ("", "Keep it short.", "Please answer in two or three sentences.", "Thanks!")

PLACES = lines("""
Lisbon
Kyoto
Mexico City
Edinburgh
Marrakesh
Vancouver
Istanbul
Cape Town
New Orleans
Copenhagen
Hanoi
Buenos Aires
Reykjavik
Prague
Seville
Singapore
Chicago
Naples
Dublin
Athens
the Scottish Highlands
the Swiss Alps
Costa Rica
the Greek islands
New Zealand
Sicily
the Norwegian fjords
Vietnam
Morocco
the California coast
""")

PLACE_KINDS = {
    "trip": (
        "Plan a {days}-day trip to {topic} with {who}.",
        "I am going to {topic} with {who}. What should we see in {days} days?",
        "Suggest a relaxed itinerary of {days} days for {topic}.",
    ),
    "food": (
        "Which local dishes should I try in {topic}?",
        "What do people eat in {topic}? Name {n} dishes and describe them.",
    ),
    "season": (
        "When is the best time of the year to visit {topic}?",
        "What should I pack for {topic} in {month}?",
    ),
    "postcard": (
        "Write a postcard from {topic} to my parents.",
        "Describe {topic} in a way that makes me want to go there.",
    ),
}

DISHES = lines("""
lentil soup
vegetable curry
pancakes
a simple omelet
banana bread
roast chicken
spaghetti with tomato sauce
fried rice
potato salad
guacamole
apple pie
chocolate chip cookies
mushroom risotto
a Greek salad
black bean tacos
pumpkin soup
homemade pizza
French toast
stir-fried noodles
hummus
vegetable lasagna
fish with lemon
chili without meat
cinnamon rolls
a berry smoothie
""")

DISH_KINDS = {
    "recipe": (
        "Give me a recipe for {topic} for {n} people.",
        "How do I make {topic}? List the ingredients and the steps.",
        "I have never cooked before. Explain how to make {topic}.",
    ),
    "variation": (
        "How can I make {topic} more interesting?",
        "Suggest {n} variations of {topic}, one of them vegan or low in fat.",
        "What goes well with {topic}? Plan a whole menu.",
    ),
}

NO_FRAME = ("",)
CURIOUS = (
    *("",) * 6,
    "I have an exam next week.",
    "My daughter asked me about this yesterday and I had no good answer.",
    "I read an article about this and did not really understand it.",
    "I am preparing a short presentation for work.",
    "This came up at dinner with friends.",
    "I am a teacher and need fresh material.",
    "I am just curious today.",
)
PERSONAL = (
    *("",) * 6,
    "I am a complete beginner.",
    "I have little time and a small budget.",
    "I am in my sixties and have just retired.",
    "I am a student with a part-time job.",
    "I work full time and have two kids.",
    "My partner is skeptical, so I need good arguments.",
    "A friend told me that you are good at this.",
)
DECIDING = (
    *("",) * 5,
    "My partner and I disagree about this.",
    "My family keeps arguing about this.",
    "I have to decide this month.",
    "I am new to this topic.",
    "Help me settle a friendly bet.",
)
WRITER = (
    *("",) * 6,
    "I need something for our school newsletter.",
    "I am taking a creative writing class.",
    "It is for my niece, who is nine.",
    "I have had writer's block all week.",
    "I want to read it aloud tonight.",
)
ANSWER = (
    *("",) * 6,
    "Use plain language and short sentences.",
    "Keep it under {limit} words.",
    "Use bullet points.",
    "End with a one-sentence summary.",
    "Give one concrete example for each point.",
    "Please start with the most important point.",
    "Avoid jargon, and tell me what I should look at next.",
)
VOICE = (
    *("",) * 6,
    "Keep the language simple.",
    "Make it funny, but kind.",
    "Give it a hopeful mood.",
    "Use vivid images and few adjectives.",
    "Keep it under {limit} words.",
)
MESSAGE = (
    *("",) * 6,
    "Leave blanks for the names and dates.",
    "Do not make it sound like a template.",
    "It should end with a clear next step.",
    "We have known each other for {n} years.",
    "This is the second time that I write, so be clear.",
)

DRAWN = {
    "n": (3, 4, 5, 6, 7, 8, 10),
    "age": (6, 7, 10, 12, 15),
    "words": (50, 80, 100, 120, 150, 200),
    "limit": (100, 120, 150, 200, 250),
    "minutes": (20, 30, 45, 60),
    "weeks": (2, 4, 6, 8, 12),
    "hours": (2, 3, 5, 8),
    "days": (2, 3, 4, 5, 7),
    "tone": ("polite", "friendly", "short", "formal", "warm", "professional"),
    "month": ("January", "March", "May", "July", "September", "November"),
    "who": ("my partner", "two friends", "two small children", "my mother", "a small group"),
}


def tasks() -> Iterator[tuple[str, Writer]]:
    """Every (kind, topic) pair with its writer."""
    yield from crossed(SUBJECT_KINDS, SUBJECTS, CURIOUS, ANSWER, **DRAWN)
    yield from crossed(ACTIVITY_KINDS, ACTIVITIES, PERSONAL, ANSWER, **DRAWN)
    yield from crossed(STORY_KINDS, STORIES, WRITER, VOICE, **DRAWN)
    yield from crossed(PLACE_KINDS, PLACES, NO_FRAME, ANSWER, **DRAWN)
    yield from crossed(DISH_KINDS, DISHES, PERSONAL, ANSWER, **DRAWN)
    yield from crossed({"letter": LETTER_ASKS}, LETTERS, NO_FRAME, MESSAGE, **DRAWN)
    yield from crossed({"advice": TROUBLE_ASKS}, TROUBLES, NO_FRAME, ANSWER, **DRAWN)
    yield from crossed({"ideas": IDEA_ASKS}, IDEAS, PERSONAL, ANSWER, **DRAWN)
    yield from crossed({"role": ROLE_ASKS}, ROLES, NO_FRAME, VOICE, **DRAWN)
    for kind, asks in PAIR_KINDS.items():
        for first, second in (line.split(" | ") for line in PAIRS):
            writer = framed(asks, DECIDING, ANSWER, first=first, second=second, **DRAWN)
            yield f"{kind}: {first} or {second}", writer
    for kind, style in STYLES.items():
        for text in SENTENCES:
            yield f"rewrite, {kind}: {text}", phrased(STYLE_ASKS, style=style, text=text)
    for line in SMALL_TALK:
        yield f"small talk: {line}", framed(("{line}",), GREETINGS, ENDINGS, line=line, **DRAWN)
